"""Moons and circles against their formulas, and against scikit-learn where it is there."""

import math

import pytest
import torch

from lipkit.data import Examples, circles, moons
from lipkit.errors import ArgumentError

# The last bits of float32 at numbers up to 2.
NEAR = 4 * 2**-24


def of(examples: Examples, label: int) -> torch.Tensor:
    return examples.inputs[examples.labels == label].double()


@pytest.mark.parametrize("count", [2, 3, 40, 41])
def test_moons_lie_on_their_half_circles(count: int):
    found = moons(count, seed=1, noise=0)
    upper, lower = of(found, 0), of(found, 1)
    assert (len(upper), len(lower)) == (count // 2, count - count // 2)
    assert (upper.norm(dim=1) - 1).abs().max() <= NEAR
    assert upper[:, 1].min() >= -NEAR
    assert ((lower - torch.tensor([1, 0.5])).norm(dim=1) - 1).abs().max() <= NEAR
    assert lower[:, 1].max() <= 0.5 + NEAR


def test_the_moons_are_half_a_unit_apart():
    found = moons(4001, seed=0, noise=0)
    # The closest pairs, such as (1, 0) and (1, -1/2), are among the points when the counts are odd.
    assert float(torch.cdist(of(found, 0), of(found, 1)).min()) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("ratio", [0.3, 0.8])
def test_circles_lie_on_circles_evenly(ratio: float):
    found = circles(81, seed=2, noise=0, ratio=ratio)
    outer, inner = of(found, 0), of(found, 1)
    assert (len(outer), len(inner)) == (40, 41)
    assert (outer.norm(dim=1) - 1).abs().max() <= NEAR
    assert (inner.norm(dim=1) - ratio).abs().max() <= NEAR
    angles = torch.atan2(inner[:, 1], inner[:, 0]).sort().values
    assert angles.diff().sub(2 * math.pi / 41).abs().max() <= 8 * NEAR / ratio


@pytest.mark.parametrize("make", [moons, circles])
def test_noise_has_the_deviation_it_is_given(make):
    noise, count = 0.2, 20_000
    still, moved = make(count, 3, noise=0), make(count, 3, noise=noise)
    # One seed draws one order and one noise, so the difference is the noise alone.
    assert torch.equal(still.labels, moved.labels)
    moves = (moved.inputs - still.inputs).double() / noise
    # Mean and variance of 2 n standard normal numbers: five of their deviations, 1/sqrt(2n) and sqrt(2/(2n)).
    assert abs(float(moves.mean())) < 5 / math.sqrt(2 * count)
    assert abs(float(moves.square().mean()) - 1) < 5 / math.sqrt(count)
    assert abs(float((moves[:, 0] * moves[:, 1]).mean())) < 5 / math.sqrt(count)


@pytest.mark.parametrize("make", [moons, circles])
def test_the_seed_decides(make):
    first, again, other = make(50, 7), make(50, 7), make(50, 8)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("make", [moons, circles])
def test_drawing_leaves_the_global_generator_alone(make):
    state = torch.random.get_rng_state()
    make(10, 1)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("make", [moons, circles])
def test_classes_are_mixed(make):
    # In an order that was not drawn, the first half would be one class.
    assert 0 < int(make(1000, 5).labels[:500].sum()) < 500


@pytest.mark.parametrize("count", [10, 11])
def test_scikit_learn_has_the_same_points(count: int):
    datasets = pytest.importorskip("sklearn.datasets")
    for ours, (points, labels) in [
        (moons(count, 0, noise=0), datasets.make_moons(count, shuffle=False)),
        (circles(count, 0, noise=0, ratio=0.5), datasets.make_circles(count, shuffle=False, factor=0.5)),
    ]:
        theirs = torch.from_numpy(points)
        for label in (0, 1):
            gaps = torch.cdist(of(ours, label), theirs[torch.from_numpy(labels) == label])
            assert gaps.shape[0] == gaps.shape[1]
            assert gaps.amin(0).max() <= NEAR
            assert gaps.amin(1).max() <= NEAR


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: moons(1, 0), "at least 2 points, got count=1"),
        (lambda: moons(9, 0, noise=-0.1), "noise is a deviation.*got -0.1"),
        (lambda: circles(9, 0, noise=math.nan), "noise is a deviation.*got nan"),
        (lambda: circles(9, 0, ratio=1.0), "radius between 0 and 1, got ratio=1.0"),
    ],
)
def test_nonsense_is_refused(call, complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        call()
