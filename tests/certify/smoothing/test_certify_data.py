"""Smoothing runs on data: their logs, interruptions, processes, and certificates made anew."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipkit
from lipkit import Bound, Kind
from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, RecordError, ShapeError
from support.programs.run import PROGRAMS, environment, run_program
from support.programs.smoothing_program import COUNT, data, settings, smoothed
from support.sealed_files import read_lines, write_lines

PROGRAM = PROGRAMS / "smoothing_program.py"


def table(folder: Path) -> dict[int, str]:
    rows = [line for path in folder.glob("samples-*.jsonl") for line in path.read_text().splitlines()]
    found = {json.loads(row)["index"]: row for row in rows}
    assert len(found) == len(rows), "an image was sampled twice"
    return found


@pytest.mark.process
def test_two_processes_killed_in_the_middle_finish_the_votes_of_one(tmp_path: Path) -> None:
    here = rs.certify_data(smoothed(), data(), **settings(), records=tmp_path / "one")
    whole = table(tmp_path / "one")
    assert sorted(whole) == list(range(COUNT))
    folder = tmp_path / "killed"
    command = [sys.executable, str(PROGRAM), str(folder), "2", "slowly"]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("samples-*.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    assert 0 < len(table(folder)) < COUNT
    found = run_program(PROGRAM, [str(folder), "2"], 300)
    assert found.returncode == 0, found.stderr[-3000:]
    # Bit by bit: the lines have all digits of the counts and moments, and a checksum of all.
    assert table(folder) == whole
    again = rs.recertify(folder, settings()["eps"])
    assert torch.equal(again.radii.radius, here.radii.radius)
    assert again.evaluation == here.evaluation


def test_shares_count_the_certificates_of_single_images(tmp_path: Path) -> None:
    one, examples = smoothed(), data()
    found = rs.certify_data(one, examples, [0.0, 0.1, 0.3], n0=20, n=500, alpha=0.01, records=tmp_path)
    alone = one.certify(examples.tensors[0], 20, 500, 0.01)
    assert torch.equal(found.radii.radius, alone.radius)
    assert torch.equal(found.radii.label, alone.label)
    right = alone.label == examples.tensors[1]
    assert found.evaluation.overall.clean.count == int(right.sum())
    counts = [int((right & (alone.radius > eps)).sum()) for eps in (0.0, 0.1, 0.3)]
    assert [share.count for share in found.evaluation.overall.certified] == counts
    mean = math.fsum(torch.where(right, alone.radius, 0.0).tolist()) / COUNT
    assert found.evaluation.overall.mean_radius == mean
    assert found.abstained == int((alone.label == rs.ABSTAIN).sum()) > 0
    assert f"{found.abstained} undecided" in str(found)


def test_progress_counts_what_is_done_already(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    for _ in range(2):
        rs.certify_data(
            smoothed(), data(), **settings(), records=tmp_path, progress=lambda *counts: told.append(counts)
        )
    assert told == [(i + 1, COUNT) for i in range(COUNT)] * 2


def test_any_order_of_reading_gives_the_same_votes(tmp_path: Path) -> None:
    one = smoothed()
    rs.certify_data(one, data(), **settings(), records=tmp_path / "single")
    rs.certify_data(one, DataLoader(data(), batch_size=7), **settings(), records=tmp_path / "batches")
    assert table(tmp_path / "single") == table(tmp_path / "batches")
    listed = [(data().tensors[0], data().tensors[1])]
    assert torch.equal(
        rs.certify_data(one, listed, **settings()).radii.radius, rs.recertify(tmp_path / "single", [0.1]).radii.radius
    )


def test_certificates_are_made_anew_without_the_model(tmp_path: Path) -> None:
    one, examples = smoothed(), data()
    rs.certify_data(one, examples, **settings(), records=tmp_path)
    samples = one.sample(examples.tensors[0], 20, 500, seed=7, block=128)
    bound = lipkit.lipschitz(one.model, examples.tensors[0][:1])  # pyright: ignore[reportArgumentType]
    for alpha, method in ((0.01, rs.Cohen()), (0.1, rs.Bonferroni())):
        again = rs.recertify(tmp_path, [0.1], alpha=alpha, method=method)
        assert torch.equal(again.radii.radius, one.radii(samples, alpha, method).radius)
    through = rs.recertify(tmp_path, [0.1], p=math.inf)
    assert through.evaluation.p == math.inf
    assert "through l2" in str(through)
    with pytest.raises(ArgumentError, match="Hardmax"):
        rs.recertify(tmp_path, [0.1], bound=bound)
    torch.manual_seed(0)
    other = lipkit.lipschitz(nn.Linear(5, 3), torch.zeros(1, 5))
    with pytest.raises(ArgumentError, match="another network"):
        rs.recertify(tmp_path, [0.1], bound=other)
    with pytest.raises(ShapeError, match="inputs of shape"):
        rs.recertify(tmp_path, [0.1], bound=lipkit.lipschitz(nn.Linear(6, 3), torch.zeros(1, 6)))


def test_a_stated_bound_is_told_of(tmp_path: Path) -> None:
    one = smoothed()
    soft = rs.Smoothed(one.model, 0.4, num_classes=3, simplex=rs.Softmax(0.2))
    stated = Bound.from_value(5.0, Kind.UPPER, "somebody says so")
    found = rs.certify_data(soft, data(), **settings(), bound=stated, records=tmp_path)
    assert found.evaluation.stated
    assert not rs.recertify(tmp_path, [0.1]).evaluation.stated


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"n": 501}, "n was 500, now 501"), ({"seed": 8}, "seed was 7"), ({"block": 64}, "block was 128"),
     ({"n0": 21}, "n0 was 20")],
)  # fmt: skip
def test_votes_of_other_settings_are_not_mixed(changed: dict[str, int], words: str, tmp_path: Path) -> None:
    rs.certify_data(smoothed(), data(), **settings(), records=tmp_path)
    with pytest.raises(RecordError, match=words):
        rs.certify_data(smoothed(), data(), **{**settings(), **changed}, records=tmp_path)


def test_another_model_noise_vote_or_data_is_refused(tmp_path: Path) -> None:
    one = smoothed()
    assert isinstance(one.model, nn.Module)
    rs.certify_data(one, data(), **settings(), records=tmp_path)

    def refused(words: str, other: rs.Smoothed, examples: Any = None) -> None:
        with pytest.raises(RecordError, match=words):
            rs.certify_data(other, examples or data(), **settings(), records=tmp_path)

    refused("noise sigma was 0.4, now 0.5", rs.Smoothed(one.model, 0.5, num_classes=3, simplex=one.maps))
    refused("maps", rs.Smoothed(one.model, 0.4, num_classes=3))
    x, y = data().tensors
    refused("data", one, TensorDataset(x + 1, y))
    refused("data", one, TensorDataset(x, 2 - y))
    # Data that are not hashed as a whole are compared image by image.
    listed = [(x[i : i + 6], y[i : i + 6]) for i in range(0, COUNT, 6)]
    rs.certify_data(one, listed, **settings(), records=tmp_path / "listed")
    later = [*listed[:3], (listed[3][0] + 1, listed[3][1])]
    with pytest.raises(RecordError, match="image 18 with another input"):
        rs.certify_data(one, later, **settings(), records=tmp_path / "listed")

    class Endless:
        """Batches whose number nobody can ask for."""

        def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
            self.batches = batches

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(self.batches)

    rs.certify_data(one, Endless(listed), **settings(), records=tmp_path / "endless")
    with pytest.raises(RecordError, match="image 18, which the data do not have"):
        rs.certify_data(one, Endless(listed[:3]), **settings(), records=tmp_path / "endless")
    with torch.no_grad():
        next(one.model.parameters()).add_(1.0)
    refused("model", one)


class Opaque(nn.Module):
    """A model that cannot be captured, with a plain number that decides."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(5, 3)
        self.hidden = [scale]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (self.hidden[0] if float(x.detach().sum()) else 2.0)


def test_what_cannot_be_captured_is_known_by_tensors_and_answers(tmp_path: Path) -> None:
    def run(model: Any) -> rs.SmoothedEvaluation:
        one = rs.Smoothed(model, 0.4, num_classes=3)
        return rs.certify_data(one, data(), **settings(), records=tmp_path / type(model).__name__)

    first = run(Opaque())
    assert torch.equal(run(Opaque()).radii.radius, first.radii.radius)
    changed = Opaque()
    changed.hidden = [-1.0]
    with pytest.raises(RecordError, match=r"attributes|answers"):
        run(changed)
    linear = Opaque().linear
    scope: dict[str, Any] = {"linear": linear}
    # A function that is typed in has no source.
    exec("def typed(x): return linear(x)", scope)
    run(scope["typed"])
    run(scope["typed"])
    with torch.no_grad():
        linear.bias.add_(3.0)
    with pytest.raises(RecordError, match="answers"):
        run(scope["typed"])


def test_a_change_behind_everything_shows_in_the_first_stored_image(tmp_path: Path) -> None:
    path = tmp_path / "run" / "samples-0000.jsonl"
    rs.certify_data(smoothed(), data(), **settings(), records=path.parent)
    lines = read_lines(path)
    for line in lines:
        line["selection"] = lines[5]["selection"]
    write_lines(path, lines[:-1])
    with pytest.raises(RecordError, match="other logits for noisy copies of image 0"):
        rs.certify_data(smoothed(), data(), **settings(), records=path.parent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": [500, 1, 0]}, "501 votes of 3 classes for 500 samples"),
        ({"counts": [500, 0]}, "2 classes"),
        ({"counts": [501, -1, 0]}, "instead of a whole number"),
        ({"counts": [499, 0, 0], "spent": 499}, "499 of 500 samples"),
        ({"spent": 0, "counts": [0, 0, 0]}, "0 samples"),
        ({"label": 3}, "a class that there is not"),
        ({"tracked": [0, 0, 1]}, "a class that there is not"),
        ({"selection": "AAAA"}, "is no result of an image"),
        ({"selection": ""}, "is no result of an image"),
        ({"moments": []}, "is no result of an image"),
        ({"moments": [{"first": [1.0, 2.0, 3.0, 0.0], "second": [2.0, 1.0, 1.0, 0.0]}] * 2}, "that no votes have"),
        ({"moments": [{"first": [math.nan, 2.0, 3.0, 0.0], "second": [1.0, 1.0, 1.0, 0.0]}] * 2}, "finite"),
        ({"moments": [{"first": [10**400, 2.0, 3.0, 0.0], "second": [1.0, 1.0, 1.0, 0.0]}] * 2}, "too large"),
        ({"index": -1}, "instead of a whole number"),
    ],
)
def test_impossible_lines_are_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    rs.certify_data(smoothed(), data(), **{**settings(), "n": 500}, records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    lines = read_lines(path)
    write_lines(path, [*lines[:3], {**lines[3], **change}, *lines[4:]])
    with pytest.raises(RecordError, match=f"line 4 is no result of an image.*{words}|{words}"):
        rs.recertify(tmp_path, [0.1])


def test_damage_and_contradictions_are_named(tmp_path: Path) -> None:
    rs.certify_data(smoothed(), data(), **settings(), records=tmp_path)
    path = tmp_path / "samples-0000.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"spent": 500', b'"spent": 501', 1))
    with pytest.raises(RecordError, match="line 1 does not fit its checksum"):
        rs.recertify(tmp_path, [0.1])
    path.write_bytes(whole)
    lines = read_lines(path)
    twice = {**lines[0], "counts": lines[1]["counts"]}
    write_lines(path, [*lines, twice])
    with pytest.raises(RecordError, match="image 0 is there twice"):
        rs.recertify(tmp_path, [0.1])
    with pytest.raises(RecordError, match="holds no log"):
        rs.recertify(tmp_path / "nothing", [0.1])


def test_samples_that_end_early_resume_with_their_rule_alone(tmp_path: Path) -> None:
    one = rs.Smoothed(smoothed().model, 0.4, num_classes=3)
    method, given = rs.Anytime(0.05), {**settings(), "block": 32}
    found = rs.certify_data(one, data(), **given, method=method, alpha=0.1, records=tmp_path)
    assert int(found.radii.samples.min()) < 500
    path = tmp_path / "samples-0000.jsonl"
    whole = path.read_bytes()
    write_lines(path, read_lines(path)[:10])
    rs.certify_data(one, data(), **given, method=method, alpha=0.1, records=tmp_path)
    assert path.read_bytes() == whole
    with pytest.raises(RecordError, match=r"stop alpha was 0\.1, now 0\.2"):
        rs.certify_data(one, data(), **given, method=method, alpha=0.2, records=tmp_path)
    with pytest.raises(ArgumentError, match="chose the number of these samples"):
        rs.recertify(tmp_path, [0.1])
    again = rs.recertify(tmp_path, [0.1], method=method, alpha=0.1)
    assert torch.equal(again.radii.radius, found.radii.radius)


def test_data_are_checked() -> None:
    x, y = data().tensors
    with pytest.raises(ArgumentError, match=r"Labels must lie in 0\.\.2, got 3\.\.3"):
        rs.certify_data(smoothed(), TensorDataset(x, torch.arange(COUNT) % 4), **settings())
    with pytest.raises(ArgumentError, match="at least one image"):
        rs.certify_data(smoothed(), TensorDataset(x[:0], y[:0]), **settings())
    with pytest.raises(ArgumentError, match="radii >= 0"):
        rs.certify_data(smoothed(), data(), **{**settings(), "eps": [-1.0]})
    with pytest.raises(ArgumentError, match="more than once"):
        rs.certify_data(smoothed(), iter([(x, y)]), **settings())  # pyright: ignore[reportArgumentType]


def test_a_log_keeps_all_digits(tmp_path: Path) -> None:
    one, examples = smoothed(), data()
    rs.certify_data(one, examples, **settings(), records=tmp_path)
    log = rs.Log.read(tmp_path)
    assert (log.noise, log.maps) == (one.noise, one.maps)
    samples = one.sample(examples.tensors[0], 20, 500, seed=7, block=128)
    for i, image in log.images.items():
        assert torch.equal(image.samples.selection[0], samples.selection[i])
        for kept, drawn in zip(image.samples.moments, samples.moments, strict=True):
            assert kept.map == drawn.map
            assert torch.equal(kept.first[0], drawn.first[i])
            assert torch.equal(kept.second[0], drawn.second[i])
    assert replace(log, images={}).settings["n"] == 500


def test_shares_of_an_unfinished_run_are_refused(tmp_path: Path) -> None:
    rs.certify_data(smoothed(), data(), **settings(), records=tmp_path)
    path = next(tmp_path.glob("samples-*.jsonl"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RecordError, match=rf"holds the votes of {COUNT - 1} of {COUNT} images; run the same command"):
        rs.recertify(tmp_path, (0.25,))
