"""Histories as plain numbers: nothing is lost on the way, and nothing that is wrong gets in."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.analysis import History, NoiseModel, Profiler, driving_factors, forecast, phases, read_history
from lipkit.analysis.dynamics.stored_history import StoredHistory, StoredSpectra
from lipkit.errors import ArgumentError, RecordError


@pytest.fixture(scope="module")
def history() -> History:
    """20 steps of plain SGD, whose noise terms are known."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        x, y = torch.randn(64, 4), torch.arange(64) % 3
        optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01)
        with Profiler(model, optimizer, x[:1], every=1, split=True) as profile:
            for _ in range(20):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return profile.history


def test_json_keeps_every_bit(history: History) -> None:
    stored = StoredHistory.of(history, 1, {"0": StoredSpectra(6, 4, ((2.0, 1.0),) * 21, (5.0,) * 21)})
    back = StoredHistory.from_json(stored.to_json(), "a file")
    assert back == stored
    assert back.layers[0].spectra is not None
    assert back.layers[1].spectra is None
    again = back.to_history()
    assert history.expected is not None
    assert history.layers[0].kappa_scalar is not None
    for a, b in ((history, again), *zip(history.layers, again.layers, strict=True)):
        for field in dataclasses.fields(a):
            old, new = getattr(a, field.name), getattr(b, field.name)
            if isinstance(old, torch.Tensor):
                assert old.dtype == new.dtype
                assert torch.equal(old, new)
            elif field.name != "layers":
                assert old == new


def test_thinning_keeps_the_ends_and_closes_the_books(history: History) -> None:
    stored = StoredHistory.of(history, 1, {"0": StoredSpectra(6, 4, ((2.0, 1.0),) * 21, tuple(map(float, range(21))))})
    thin = stored.thinned(6)
    before, after = forecast(stored.to_history()), forecast(thin.to_history())
    assert after.curvature > 0
    # Means times sums of time are the same sums in another order.
    assert (after.curvature, after.diffusion) == pytest.approx((before.curvature, before.diffusion), rel=1e-12)
    assert thin.steps == (0, 4, 8, 12, 16, 20)
    assert stored.thinned(21) is stored
    assert stored.thinned(8).steps == (0, 3, 6, 9, 12, 15, 18, 20)
    for layer in thin.layers:
        for i in range(5):
            change = math.log(layer.norm[i + 1] / layer.norm[i])
            booked = layer.drift[i] + layer.curvature[i] + layer.decay[i] + layer.rest[i]
            # Twenty additions of float64 numbers below 1.
            assert booked == pytest.approx(change, abs=1e-13)
    assert thin.layers[0].spectra is not None
    assert thin.layers[0].spectra.energy == (0.0, 4.0, 8.0, 12.0, 16.0, 20.0)
    with pytest.raises(ArgumentError, match="keeps at least two steps, got 1"):
        stored.thinned(1)


def test_the_edge_is_where_random_matrices_end() -> None:
    matrix = 0.3 * torch.randn(400, 900, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(matrix)
    found = StoredSpectra(400, 900, (tuple(values.tolist()),), (float(matrix.square().sum()),))
    # The largest value lies within about size^(-2/3) of the edge: a percent or two here.
    assert found.random_edge(0) == pytest.approx(float(values[0]), rel=0.02)
    assert found.random_edge(0) == pytest.approx(0.3 * (20 + 30), rel=0.01)
    assert found.stable_rank(0) == pytest.approx(float(matrix.square().sum() / values[0] ** 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(steps=[0, 2, 1]), "increase"),
        (lambda data: data["log_constant"].pop(), "log_constant of the history has 20 numbers, expected 21"),
        (lambda data: data["layers"][0]["drift"].append(0.0), "drift of 0 has 21 numbers, expected 20"),
        (lambda data: data.update(realised=["inf"] * 21), "realised of the history has a number that is not finite"),
        (lambda data: data.pop("label"), "label"),
        (lambda data: data["layers"][1]["norm"].__setitem__(3, 0.0), "norm of 2 is above zero, got 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(history: History, change: object, said: str) -> None:
    data = from_sealed_json(StoredHistory.of(history, 1).to_json().strip(), "it", "stop")
    change(data)  # pyright: ignore[reportCallIssue]
    with pytest.raises(RecordError, match=said):
        StoredHistory.from_json(to_sealed_json(data), "profile.json")


def test_damage_is_noticed(history: History) -> None:
    content = StoredHistory.of(history, 1).to_json()
    with pytest.raises(RecordError, match=r"profile\.json does not fit its checksum"):
        StoredHistory.from_json(content.replace(b"true", b"True").replace(b'"every": 1', b'"every": 2'), "profile.json")


def test_a_file_is_read_back_for_the_laws(history: History, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(StoredHistory.of(history, 1).to_json())
    found = read_history(path)
    for noise in NoiseModel:
        assert forecast(found, noise) == forecast(history, noise)
    assert torch.equal(phases(found, 5).curvature, phases(history, 5).curvature)
    assert torch.equal(driving_factors(found)[0].curvature, driving_factors(history)[0].curvature)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is damaged, or of an earlier version; train again with --profile"),
        (b"\x89PNG\r\n\x1a\n", "has no checksum"),
        (b'{"a": 1}', "has no checksum"),
        (to_sealed_json({"is": "certify.Evaluation"}), "is no history of a training"),
        (to_sealed_json({}), "is no history of a training"),
    ],
)
def test_a_foreign_file_is_refused_in_one_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=said) as refused:
        read_history(path)
    assert "other.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ArgumentError, match=r"cannot be read.*give the profile\.json in the folder of a run"):
            read_history(path)


def test_the_edge_of_a_kernel_with_groups_is_that_of_its_blocks() -> None:
    blocks = 0.3 * torch.randn(20, 100, 225, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    largest = float(torch.linalg.svdvals(blocks).amax())
    found = StoredSpectra(100, 225, ((largest,),), (float(blocks.square().sum()),), 20)
    # The largest of twenty, each within about size^(-2/3) of the edge.
    assert found.random_edge(0) == pytest.approx(largest, rel=0.04)
    assert found.random_edge(0) == pytest.approx(0.3 * (10 + 15), rel=0.01)
