"""Nothing is certified with the bound of another network, and a stated bound is called so."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Kind, Scope
from lipkit.bounds import DAG, Local, _base
from lipkit.bounds.lipschitz import network_of
from lipkit.certify import (
    AverageRadius,
    CertifiedAccuracy,
    Forward,
    accuracy,
    find_warnings,
    head_pairwise,
    in_norm,
    radius,
)
from lipkit.certify.attacks import TwoClasses
from lipkit.certify.evaluate.records import SampleResult
from lipkit.certify.radii.radius import binary_radius
from lipkit.cli.runs.result_files import plain
from lipkit.errors import ArgumentError, ShapeError


def pooled() -> nn.Sequential:
    """Takes images of every size; its mean over positions has a smaller constant for larger images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ).eval()


def samples(size: int = 8, count: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, size, size, generator=generator)
    with torch.no_grad():
        y = pooled()(x).argmax(1)
    return [(x[i : i + 4], y[i : i + 4]) for i in range(0, count, 4)]


@pytest.mark.slow
def test_a_bound_of_larger_images_is_refused_for_smaller_ones():
    """A mean over 64 x 64 positions has an eighth of the constant: radii would be eight times too large."""
    model, (x, y) = pooled(), samples()[0]
    with torch.no_grad():
        large, small = (lipkit.lipschitz(model, torch.zeros(1, 1, n, n), DAG()) for n in (64, 8))
        found = Forward(model, x[:1])(x)
    assert float(large.value) < 0.2 * float(small.value)
    words = r"inputs of shape \(1, 64, 64\), and these have the shape \(1, 8, 8\)"
    with pytest.raises(ShapeError, match=words):
        accuracy(model, samples(), large, [0.01])
    with pytest.raises(ShapeError, match=words):
        radius(found.value, y, large, error=found.error, at=x)
    with pytest.raises(ShapeError, match=words):
        radius(found, y, large)
    with pytest.raises(ShapeError, match=words):
        binary_radius(found.value[:, 0], torch.ones_like(y), large, at=x)
    for metric in (CertifiedAccuracy([0.01], large), AverageRadius(large)):
        with pytest.raises(ShapeError, match=words):
            metric.update(found.value, y, at=x)
        with pytest.raises(ShapeError, match=words):
            metric.update(found, y)
    with torch.no_grad(), pytest.raises(ShapeError, match=r"\(1, 64, 64\), which do not have 64 entries"):
        in_norm(head_pairwise(model, torch.zeros(1, 1, 64, 64), DAG()), math.inf, 64)
    assert accuracy(model, samples(), small, [0.01]).overall.certified[0].count > 0


@pytest.mark.parametrize("change", ["weights", "normalisation", "bias"])
def test_a_bound_of_another_network_is_refused(change: str):
    model = pooled()
    x, y = samples()[0]
    with torch.no_grad():
        # Large enough that no input disproves it, so that the fingerprint alone can tell.
        bound = head_pairwise(model, x[:1], DAG())
        if change == "weights":
            dict(model.named_parameters())["0.weight"].mul_(0.999)
        elif change == "bias":
            dict(model.named_parameters())["4.bias"].add_(1e-3)
        else:
            model = nn.Sequential(nn.BatchNorm2d(1), *model).eval()
        found = Forward(model, x[:1])(x)
    for act in (
        lambda: accuracy(model, samples(), bound, [0.01]),
        lambda: radius(found, y, bound),
        lambda: CertifiedAccuracy([0.01]).update(found, y, bound),
        lambda: accuracy(model, samples(), lambda _: bound, [0.01]),
        lambda: accuracy(model, samples(), bound, [0.01], logits=Forward(model, x[:1])),
    ):
        with pytest.raises(ArgumentError, match="of another network than the one that is evaluated"):
            act()
    # Plain numbers do not say where they come from.
    radius(found.value, y, bound, error=found.error, at=x)


def test_a_stated_bound_is_accepted_and_the_result_says_so(tmp_path: Path):
    model = pooled()
    with torch.no_grad():
        bound = head_pairwise(model, samples()[0][0][:1], DAG())
    stated = Bound.from_value(bound.value, Kind.UPPER, "by hand", of=Scope.PAIR)
    computed = accuracy(model, samples(), bound, [0.01], records=tmp_path / "computed")
    by_hand = accuracy(model, samples(), stated, [0.01], records=tmp_path / "stated")
    assert computed.overall.certified == by_hand.overall.certified
    assert not computed.stated
    assert by_hand.stated
    words = "stated by the user, not computed from this model"
    assert words in str(by_hand)
    assert words not in str(computed)
    inputs = torch.cat([x for x, _ in samples()])
    sentences = find_warnings(by_hand, inputs, stated)
    assert len([one for one in sentences if words in one]) == 1
    # What is written into files and onto the page.
    assert plain(by_hand, sentences)["warnings"] == list(sentences)
    assert not [one for one in find_warnings(computed, inputs, bound) if words in one]
    lines = [json.loads(line) for line in (tmp_path / "stated" / "samples-0000.jsonl").read_text().splitlines()]
    assert lines
    assert all(line["stated"] for line in lines)
    settings = json.loads((tmp_path / "stated" / "settings.json").read_text())
    assert settings["bound"]["network"] == "stated by the user"
    # What was stored with a stated constant is not continued with a computed one of the same value.
    with pytest.raises(lipkit.errors.RecordError, match="other settings"):
        accuracy(model, samples(), bound, [0.01], records=tmp_path / "stated")
    again = accuracy(model, samples(), stated, [0.01], records=tmp_path / "stated")
    assert again.stated


def test_constants_near_each_input_are_compared_and_their_network_is_hashed_once(monkeypatch: pytest.MonkeyPatch):
    model, calls = pooled(), []
    honest = _base.network_hash
    monkeypatch.setattr(_base, "network_hash", lambda network: calls.append(1) or honest(network))
    with torch.no_grad():
        network = network_of(model, samples()[0][0][:1])
    data = samples(count=12)
    with torch.no_grad():
        found = accuracy(model, data, lambda x: Local(DAG())(network, Ball(x, 0.5)), [0.001])
    assert not found.stated
    # Three batches: the network of the bounds and that of the logits, once each.
    assert len(calls) == 2


def test_a_single_score_is_bounded_as_it_is_evaluated():
    score = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).eval()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = (score(x)[:, 0] > 0).long()
        two = TwoClasses(score)
        right, wrong = lipkit.lipschitz(two, x, DAG()), lipkit.lipschitz(score, x, DAG())
    assert accuracy(two, [(x, y)], right, [1e-6]).overall.certified[0].count == 6
    with pytest.raises(ArgumentError, match="another network"):
        accuracy(two, [(x, y)], wrong, [1e-6])


def test_logits_carry_their_own_error():
    model, (x, y) = pooled(), samples()[0]
    with torch.no_grad():
        bound, found = head_pairwise(model, x[:1], DAG()), Forward(model, x[:1])(x)
    assert torch.equal(radius(found, y, bound).value, radius(found.value, y, bound, error=found.error).value)
    with pytest.raises(ArgumentError, match="carry their own error"):
        radius(found, y, bound, error=0.1)


def test_a_sample_says_whether_its_constant_was_stated():
    assert not SampleResult(0, 0, 0, 1.0).stated
