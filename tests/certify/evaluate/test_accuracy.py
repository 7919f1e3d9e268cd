"""Whole evaluations: against closed forms, under attack, over processes, across kills."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipkit
from lipkit import Ball, Bound, Kind, Scope, bounds, certify
from lipkit.certify import Evaluation, Logits, Proportion, accuracy
from lipkit.certify.attacks import PGD, EveryClass
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.certify.evaluate.records import Records
from lipkit.certify.evaluate.result_folder import read_settings
from lipkit.errors import (
    ArgumentError,
    BrokenCertificateError,
    KindError,
    MetricError,
    NonFiniteError,
    RecordError,
    ShapeError,
)
from support.programs.certify_program import COUNT, data, model, settings
from support.programs.run import PROGRAMS, environment, run_program
from support.sealed_files import read_lines, write_lines
from support.unchecked import unchecked

PROGRAM = PROGRAMS / "certify_program.py"


def affine(classes: int = 3) -> tuple[nn.Linear, TensorDataset, Bound]:
    torch.manual_seed(1)
    layer = nn.Linear(4, classes).double()
    inputs = torch.randn(150, 4, dtype=torch.float64)
    labels = torch.randint(classes, (150,))
    labels[::2] = layer(inputs[::2]).argmax(1)
    weight = layer.weight.detach()
    pairs = torch.linalg.vector_norm(weight[:, None] - weight[None], dim=-1)
    return layer, TensorDataset(inputs, labels), Bound.from_value(pairs, Kind.UPPER, "rows", of=Scope.PAIR)


@pytest.mark.slow
def test_an_affine_classifier_is_certified_where_attacks_fail() -> None:
    layer, data_set, bound = affine()
    eps = (0.0, 0.1, 0.4, 1.0)
    attack = PGD(eps=1.0, steps=40, restarts=2, objective=EveryClass())
    found = accuracy(layer, DataLoader(data_set, batch_size=32), bound, eps, attack=attack)
    inputs, labels = data_set.tensors
    z = layer(inputs).detach()
    pairs = bound.value
    for sample in found.samples:
        label = int(labels[sample.index])
        gaps = [float((z[sample.index, label] - z[sample.index, j]) / pairs[label, j]) for j in range(3) if j != label]
        assert sample.radius == pytest.approx(max(0.0, min(gaps)), rel=1e-9, abs=1e-12)
        # The certificate of an affine map is its exact distance: a good attack leaves its own one percent, no more.
        for e, broken in zip(eps, sample.broken, strict=True):
            assert not (broken and sample.radius > e)
            assert broken or sample.radius > e * 0.98
    shares = found.overall
    assert shares.clean.count == int((z.argmax(1) == labels).sum())
    assert shares.certified[0].count == shares.clean.count
    assert [s.count for s in shares.certified] == sorted((s.count for s in shares.certified), reverse=True)
    assert sum(part.clean.total for part in found.classes.values()) == 150
    assert shares.clean.low < shares.clean.value < shares.clean.high
    assert "certified" in str(found)


def test_any_source_of_batches_gives_the_same_table() -> None:
    layer, data_set, bound = affine()
    batches = [(data_set.tensors[0][i : i + 40], data_set.tensors[1][i : i + 40]) for i in range(0, 150, 40)]
    found = [
        accuracy(layer, source, bound, [0.2]).samples
        for source in (data_set, DataLoader(data_set, batch_size=64, shuffle=True), batches)
    ]
    assert [s.index for s in found[0]] == list(range(150))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert (a.index, a.label, a.predicted) == (b.index, b.label, b.predicted)
            # Sums of four products in batches of another size: a few roundings.
            assert a.radius == pytest.approx(b.radius, rel=1e-9, abs=1e-12)


def test_a_planted_wrong_constant_is_found_and_kept(tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    # The printed factor of linf outputs swapped with that of l1 halves the constant.
    wrong = replace(bound, log_value=bound.log_value - math.log(2.0))
    with pytest.raises(BrokenCertificateError, match="please report") as caught:
        # A constant for each batch, of which nothing is compared beforehand.
        accuracy(layer, data_set, lambda _: wrong, [0.5], attack=PGD(eps=1.0, steps=20), records=tmp_path, name="wrong")
    (path,) = tmp_path.glob("counterexample-*.npz")
    assert str(path) in str(caught.value)
    with np.load(path) as file:
        kept = dict(file)
    before, after = (torch.from_numpy(kept[name])[None] for name in ("input", "moved"))
    assert int(layer(before).argmax()) == int(kept["label"]) != int(layer(after).argmax())
    assert float((after - before).norm()) <= float(kept["distance"]) < float(kept["radius"])


@pytest.mark.parametrize("weights", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("inputs", [torch.bfloat16, torch.float32])
def test_a_counterexample_of_any_type_is_kept(weights: torch.dtype, inputs: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3).to(weights)
    x = torch.randn(60, 4).to(inputs)
    data_set = TensorDataset(x, layer(x.to(weights)).argmax(1))
    wrong = Bound.from_value(0.05, Kind.UPPER, "made up")
    with pytest.raises(BrokenCertificateError, match="Both inputs are in"):
        accuracy(layer, data_set, lambda _: wrong, [1.0], attack=PGD(1.0, steps=10), records=tmp_path, name="wrong")
    (path,) = tmp_path.glob("counterexample-*.npz")
    with np.load(path) as file:
        kept = dict(file)
    index = int(path.stem.split("-")[1])
    assert (str(kept["input_dtype"]), str(kept["moved_dtype"])) == (str(inputs), str(weights))
    assert np.array_equal(kept["input"].astype(np.float64), x[index].double().numpy())
    moved = torch.from_numpy(kept["moved"])
    assert torch.equal(moved.to(weights).to(moved.dtype), moved)
    assert float((moved.double() - x[index].double()).norm()) <= float(kept["distance"]) < float(kept["radius"])
    assert int((moved.double() @ layer.weight.double().T + layer.bias.double()).argmax()) != int(kept["label"])


def test_a_tie_is_wrong_clean_and_attacked() -> None:
    # Of four classes the first two share the largest logit where x is 0, the label is alone ahead where x is 1.
    layer = nn.Linear(1, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [0.0], [0.0], [0.0]]))
        layer.bias.copy_(torch.tensor([0.0, 0.0, -1.0, -1.0]))
    x = torch.tensor([[0.0], [0.0], [0.0], [1.0], [1.0]])
    y = torch.tensor([0, 1, 2, 0, 1])
    bound = Bound.from_value(1.0, Kind.UPPER, "its row")
    found = accuracy(layer, [(x, y)], bound, [0.25], attack=PGD(0.25))
    assert [sample.predicted for sample in found.samples] == [1, 0, 0, 0, 0]
    assert found.overall.attacked is not None
    shares = (found.overall.clean, found.overall.certified[0], found.overall.attacked[0])
    assert [share.count for share in shares] == [1, 1, 1]
    metric = certify.CleanAccuracy()
    metric.update(layer(x), y)
    assert metric.compute() == found.overall.clean
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    constant = accuracy(layer, [(x, 0 * y)], bound, [0.25], attack=PGD(0.25)).overall
    assert constant.attacked is not None
    assert [share.count for share in (constant.clean, *constant.certified, *constant.attacked)] == [0, 0, 0]


@pytest.mark.parametrize("seen", [False, True])
def test_what_only_rounding_changes_is_not_broken_and_what_is_seen_is_no_proof(seen: bool, tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    inputs = data_set.tensors[0]

    def doubtful(x: Tensor) -> Logits:
        """The truth for the inputs; elsewhere the runner-up leads, clearly or by a hair; the error admits it."""
        z = layer(x).detach().double()
        best = z.topk(2, 1)
        ahead = best.values[:, :1] + (0.01 if seen else 1e-8) * best.values.abs().amax(1, keepdim=True)
        swapped = z.scatter(1, best.indices[:, 1:], ahead)
        moved = ~(x[:, None] == inputs[None]).all(2).any(1)
        return Logits(torch.where(moved[:, None], swapped, z), torch.where(moved, 2 * z.abs().amax(1), 1e-9))

    found = accuracy(
        layer, data_set, lambda _: bound, [1e-6], attack=PGD(eps=1.0, steps=1), logits=doubtful, records=tmp_path,
        name="doubtful",
    )  # fmt: skip
    assert found.overall.attacked is not None
    clean, left = found.overall.clean.count, found.overall.attacked[0].count
    # The true margin is at least the error: no class changed within 1e-6, whatever the computed order says.
    assert not list(tmp_path.glob("counterexample-*"))
    assert clean > 0
    assert (left, found.unproven) == ((0, clean) if seen else (clean, 0))
    assert ("by observation in float64" in str(found)) is seen
    assert sum(sample.unproven for sample in Records(tmp_path, _settings(tmp_path)).read().values()) == found.unproven


def _settings(folder: Path) -> dict[str, object]:
    return read_settings(folder)


@pytest.mark.slow
def test_an_attack_on_a_deep_network_without_constraints_is_seen() -> None:
    # Norms multiply to far more than signals grow by, so that nothing is proven of the rounding of its logits.
    torch.manual_seed(0)
    layers = [part for _ in range(40) for part in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(64, 3)).double()
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
    x = torch.randn(20, 64, dtype=torch.float64)
    data_set = TensorDataset(x, net(x).argmax(1))
    bound = lipkit.lipschitz(net, x[:1], bounds.Product())
    found = accuracy(net, data_set, bound, [5.0], attack=PGD(eps=1.0, steps=10))
    assert found.overall.attacked is not None
    assert found.overall.attacked[0].count < found.overall.clean.count
    assert found.unproven > 0


@pytest.mark.slow
def test_local_constants_certify_more() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2)).double()
    inputs = torch.randn(20, 3, dtype=torch.float64)
    data_set = TensorDataset(inputs, net(inputs).argmax(1))
    network = lipkit.capture(net, inputs[:1])
    globally = lipkit.lipschitz(network, method=bounds.DAG())
    local = accuracy(net, data_set, lambda x: bounds.Local(bounds.DAG())(network, Ball(x, 0.05)), [0.01])
    everywhere = accuracy(net, data_set, globally, [0.01])
    pairs = zip(local.samples, everywhere.samples, strict=True)
    assert all(a.radius >= min(b.radius, 0.05) * (1 - 1e-6) for a, b in pairs)
    assert all(sample.radius <= 0.05 for sample in local.samples)
    assert local.overall.certified[0].count >= everywhere.overall.certified[0].count


def test_normalisation_is_part_of_the_model() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(4, 2).double()
    inputs = torch.rand(10, 1, 4, dtype=torch.float64)
    model = nn.Sequential(lipkit.nn.Normalize([0.5], [0.25]), nn.Flatten(), plain).double()
    labels = model(inputs).argmax(1)
    found = accuracy(model, TensorDataset(inputs, labels), certify.head_pairwise(model, inputs[:1]), [0.0])
    normal = (plain.weight[0] - plain.weight[1]).detach()
    for sample, x in zip(found.samples, inputs, strict=True):
        gap = float((model(x[None])[0, sample.label] - model(x[None])[0, 1 - sample.label]).detach())
        # A unit of input is four units behind the normalisation.
        assert sample.radius == pytest.approx(gap / (4 * float(normal.norm())), rel=1e-6)


def test_bad_calls_are_refused() -> None:
    layer, data_set, bound = affine()
    with pytest.raises(ArgumentError, match="increasing order"):
        accuracy(layer, data_set, bound, [0.2, 0.1])
    with pytest.raises(MetricError, match="use one norm"):
        accuracy(layer, data_set, bound, [0.2], p=math.inf, attack=PGD(eps=0.2))
    with pytest.raises(KindError):
        accuracy(layer, data_set, Bound.from_value(1.0, Kind.LOWER, "power"), [0.2])
    with pytest.raises(ArgumentError, match="class index"):
        accuracy(layer, TensorDataset(data_set.tensors[0], torch.zeros(150)), bound, [0.2])
    with pytest.raises(ArgumentError, match=r"0\.\.2, got 0\.\.7"):
        accuracy(layer, TensorDataset(data_set.tensors[0], torch.arange(150) % 8), bound, [0.2])
    with pytest.raises(ArgumentError, match="empty data set"):
        accuracy(layer, TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)), bound, [0.2])
    with torch.no_grad():
        layer.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError):
        accuracy(layer, data_set, bound, [0.2])


def test_data_that_can_be_gone_through_once_are_refused_and_not_begun() -> None:
    layer, data_set, bound = affine()
    batches = [(data_set.tensors[0][i : i + 50], data_set.tensors[1][i : i + 50]) for i in (0, 50, 100)]
    # A first look at the data would take away the first batch, and the table would be of the others.
    for once in (iter(batches), (batch for batch in batches)):
        with pytest.raises(ArgumentError, match="gone through more than once"):
            accuracy(layer, once, bound, [0.2])
        assert len(list(once)) == 3


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"eps": "0.1"}, ArgumentError, "lists radii, such as"),
        ({"eps": 0.1}, ArgumentError, "lists radii, such as"),
        ({"data": 3}, ArgumentError, r"a list of .inputs, labels., got int"),
        ({"data": [(torch.tensor(1.0), torch.tensor(1))]}, ArgumentError, r"for inputs of shape \(\)"),
        ({"data": [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.bool))]}, ArgumentError, r"torch\.bool"),
        ({"data": [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.complex64))]}, ArgumentError, r"torch\.complex64"),
        ({"data": [(torch.zeros(2, 4) / 0, torch.zeros(2, dtype=torch.long))]}, NonFiniteError, "clean the data"),
        ({"data": [(torch.full((2, 4), math.inf), torch.zeros(2).long())]}, NonFiniteError, "clean the data"),
        ({"attack": "pgd"}, ArgumentError, r"such as PGD.eps=0.5., got 'pgd'"),
        ({"seed": 2**63}, ArgumentError, "seed must lie in"),
        ({"seed": -1}, ArgumentError, "seed must lie in"),
        ({"model": torch.relu}, ArgumentError, r"needs a torch\.nn\.Module, got builtin.*attacks\.TwoClasses"),
        ({"model": nn.Linear(4, 1).double()}, ShapeError, r"as `attacks\.TwoClasses\(model\)`"),
        ({"model": nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()}, ShapeError, r"`attacks\.TwoClasses"),
    ],
)
@unchecked()
def test_wrong_types_are_named(change: dict[str, Any], error: type[Exception], said: str) -> None:
    layer, data_set, bound = affine()
    given = {"model": layer, "data": data_set, "bound": bound, "eps": [0.1], **change}
    with pytest.raises(error, match=said):
        accuracy(**given)


def test_the_largest_seed_attacks() -> None:
    layer, data_set, bound = affine()
    assert accuracy(layer, data_set, bound, [0.1], attack=PGD(0.1, steps=1), seed=2**63 - 1).overall.attacked


def test_a_stored_sample_with_other_radii_is_named(tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    accuracy(layer, data_set, bound, [0.1], records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    first, *rest = read_lines(path)
    write_lines(path, [{**first, "broken": [True]}, *rest])
    with pytest.raises(RecordError, match="attacks at other radii for sample 0"):
        accuracy(layer, data_set, bound, [0.1], records=tmp_path)


@pytest.mark.parametrize("other", [PGD(0.1, low=0.0, high=1.0), PGD(0.1, step_size=0.01), PGD(0.1, random_start=False)])
def test_results_of_another_attack_are_not_continued(other: PGD, tmp_path: Path) -> None:
    # These differ from the first in numbers that an attack does not tell in its name.
    layer, data_set, bound = affine()
    accuracy(layer, data_set, bound, [0.1], attack=PGD(0.1), records=tmp_path)
    with pytest.raises(RecordError, match="attack"):
        accuracy(layer, data_set, bound, [0.1], attack=other, records=tmp_path)


def test_failures_of_local_constants_add_up_and_survive(tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    unsure = replace(bound, failure=1e-5)

    def around(_: torch.Tensor) -> Bound:
        return unsure

    fresh = accuracy(layer, data_set, around, [0.2], records=tmp_path, name="unsure")
    again = accuracy(layer, data_set, around, [0.2], records=tmp_path, name="unsure")
    assert fresh.failure == again.failure == pytest.approx(150 * 1e-5)
    assert accuracy(layer, data_set, unsure, [0.2]).failure == 1e-5
    with pytest.raises(ArgumentError, match="under a `name`"):
        accuracy(layer, data_set, around, [0.2], records=tmp_path / "other")


def test_stored_results_are_of_one_model_one_constant_and_one_data_set(tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    accuracy(layer, data_set, bound, [0.2], records=tmp_path)
    others = {
        "metric": replace(bound, metric=lipkit.Metric(2.0, 1.0)),
        "failure": replace(bound, failure=0.5),
        "kind": replace(bound, kind=Kind.EXACT),
    }
    for other in others.values():
        with pytest.raises(RecordError, match="bound"):
            accuracy(layer, data_set, other, [0.2], records=tmp_path)
    with pytest.raises(RecordError, match="structure"):
        accuracy(nn.Sequential(layer), data_set, bound, [0.2], records=tmp_path)
    with pytest.raises(RecordError, match="data"):
        accuracy(layer, TensorDataset(*(part[:4] for part in data_set.tensors)), bound, [0.2], records=tmp_path)


def test_what_is_printed_is_true() -> None:
    share = Proportion.of(19999, 20000, 0.95)
    assert str(share) == "19999 of 20000, 99.9 % (99.9 to 100.0 %)"
    assert share.counted(Kind.UPPER) == "19999 of 20000, 100.0 %"
    assert [said_radius(e) for e in (0.25, 1.0, 36 / 255, 0.1 + 0.2)] == ["0.25", "1", "36/255", "0.30000000000000004"]


def test_a_changed_sample_far_down_is_noticed(tmp_path: Path) -> None:
    layer, data_set, bound = affine()
    accuracy(layer, data_set, bound, [0.2], records=tmp_path)
    inputs = data_set.tensors[0].clone()
    inputs[149] += 1
    with pytest.raises(RecordError, match="data"):
        accuracy(layer, TensorDataset(inputs, data_set.tensors[1]), bound, [0.2], records=tmp_path)


def test_models_of_other_types_are_attacked() -> None:
    layer, data_set, bound = affine()
    single = TensorDataset(data_set.tensors[0].float(), data_set.tensors[1])
    assert accuracy(layer, single, bound, [0.2], attack=PGD(eps=0.2, steps=3)).overall.attacked is not None


def test_a_loader_that_chooses_samples_is_refused() -> None:
    layer, data_set, bound = affine()
    chosen = DataLoader(data_set, sampler=torch.utils.data.SubsetRandomSampler([0, 1, 2]))
    with pytest.raises(ArgumentError, match="over a Subset"):
        accuracy(layer, chosen, bound, [0.2])
    with pytest.raises(ArgumentError, match="drop_last"):
        accuracy(layer, DataLoader(data_set, batch_size=40, drop_last=True), bound, [0.2])


def test_an_attack_in_any_box() -> None:
    torch.manual_seed(0)
    low, high = -0.1307 / 0.3081, (1 - 0.1307) / 0.3081
    layer = nn.Linear(50, 3).double()
    x = ((torch.rand(40, 50).double() - 0.1307) / 0.3081).clamp(low, high)
    bound = certify.head_pairwise(layer, x[:1])
    found = accuracy(layer, TensorDataset(x, layer(x).argmax(1)), bound, [1.0], attack=PGD(1.0, low=low, high=high))
    assert found.overall.attacked is not None


def test_the_mode_of_the_model_is_restored() -> None:
    layer, data_set, bound = affine()
    net = nn.Sequential(nn.Dropout(0.5), layer)
    net.train()
    layer.eval()
    accuracy(net, data_set, bound, [0.2])
    assert net.training
    assert net[0].training
    assert not layer.training


def run(folder: Path, *more: str, count: int = 1) -> None:
    found = run_program(PROGRAM, [str(folder), str(count), *more], 300)
    assert found.returncode == 0, found.stderr[-3000:]


def table(folder: Path) -> dict[int, str]:
    rows = [line for path in folder.glob("samples-*.jsonl") for line in path.read_text().splitlines()]
    found = {json.loads(row)["index"]: row for row in rows}
    assert len(found) == len(rows), "a sample was evaluated twice"
    return found


@pytest.mark.process
def test_two_processes_killed_in_the_middle_finish_the_same_table(tmp_path: Path) -> None:
    here: Evaluation = accuracy(model(), data(), **settings(), records=tmp_path / "one")
    whole = table(tmp_path / "one")
    assert sorted(whole) == list(range(COUNT))
    command = [sys.executable, str(PROGRAM), str(tmp_path / "two"), "2", "slowly"]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "two").glob("samples-*.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    partial = table(tmp_path / "two")
    assert 0 < len(partial) < COUNT
    run(tmp_path / "two", count=2)
    resumed = table(tmp_path / "two")
    assert resumed == whole
    assert here.overall.clean.total == COUNT
