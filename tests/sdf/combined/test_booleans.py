"""Unions, intersections and differences: where they are distances, where they are less, and constants of any kind."""

import math

import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked

GAP = 1.2
DISCS = [sdf.Sphere(torch.tensor([side * GAP / 2, 0.0]), 1.0) for side in (-1, 1)]
X = torch.cartesian_prod(*[torch.linspace(-3, 3, 61, dtype=torch.float64)] * 2)


def arcs(inner: bool) -> torch.Tensor:
    """Points of both circles, those in the other disc or those outside of it: the boundary, sampled densely."""
    angle = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    shift = torch.tensor([GAP / 2, 0.0], dtype=torch.float64)
    found = []
    for side in (-1, 1):
        points = circle + side * shift
        keep = ((points + side * shift).norm(dim=1) < 1) == inner
        found.append(points[keep])
    return torch.cat(found)


def gaps(field: sdf.Field, inner: bool) -> tuple[float, float]:
    """The largest difference to the true signed distance, outside and inside."""
    distance = torch.cdist(X, arcs(inner)).amin(1)
    value = field(X)
    # The samples are 1.6e-3 apart, so the nearest one is at most 1.6e-3 farther than the boundary;
    # cdist multiplies matrices, which costs half the digits at most.
    assert bool((value.abs() <= distance + 1e-7).all())
    difference = distance - value.abs()
    return float(difference[value < 0].max()), float(difference[value > 0].max())


def test_the_union_is_a_distance_outside_only() -> None:
    outside, inside = gaps(sdf.Union(*DISCS), inner=False)
    assert outside < 1.6e-3
    # At the centre of the picture: the corners are 0.8 away, the maximum says 0.4.
    assert inside == pytest.approx(0.4, abs=1e-3)


def test_the_intersection_is_a_distance_inside_only() -> None:
    outside, inside = gaps(sdf.Intersection(*DISCS), inner=True)
    assert inside < 1.6e-3
    # Above a corner of the lens, (0, 0.8): at (0, 3) the corner is 2.2 away, each circle (9.36)^(1/2) - 1.
    assert outside == pytest.approx(2.2 - (math.sqrt(9.36) - 1), abs=1e-3)


def test_signs_are_those_of_sets() -> None:
    a, b = DISCS[0](X) > 0, DISCS[1](X) > 0
    for field, inside in (
        (sdf.Union(*DISCS), a | b),
        (sdf.Intersection(*DISCS), a & b),
        (sdf.Difference(*DISCS), a & ~b),
        (sdf.Complement(DISCS[0]), ~a),
        (sdf.Complement(sdf.Union(*map(sdf.Complement, DISCS))), a & b),
    ):
        value = field(X)
        clear = value.abs() > 1e-12
        assert torch.equal((value > 0)[clear], inside[clear])


def test_the_largest_constant_survives() -> None:
    steep, flat = (sdf.Function(lambda x, k=k: k * x[:, 0], 2, k) for k in (3.0, 0.5))
    for field in (sdf.Union(DISCS[0], steep, flat), sdf.Intersection(flat, steep), sdf.Difference(steep, DISCS[0])):
        assert 3.0 <= constant_of(field) <= 3.0 * (1 + 1e-13)
        assert field.bound.kind is Kind.UPPER
    assert constant_of(sdf.Union(*DISCS)) == 1.0
    assert sdf.Union(*DISCS).bound.kind is Kind.UPPER
    assert sdf.Complement(DISCS[0]).bound.kind is Kind.EXACT
    assert sdf.Complement(steep).bound.kind is Kind.UPPER


def test_a_network_keeps_its_constant_but_not_its_name() -> None:
    torch.manual_seed(0)
    network = sdf.Network(torch.nn.Linear(2, 1).double(), torch.zeros(1, 2, dtype=torch.float64))
    union = sdf.Union(network, DISCS[0])
    assert constant_of(union) >= constant_of(network)
    assert network.bound.subject is not None
    assert union.bound.subject is None


def test_errors_are_those_of_the_parts() -> None:
    coarse = sdf.Function(lambda x: x[:, 0], 2, 1.0, absolute=0.125)
    assert float(sdf.Union(coarse, DISCS[0]).measure(X).error.min()) >= 0.125
    assert float(sdf.Difference(coarse, DISCS[0]).measure(X).error.max()) < 0.1251


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[2, 3\]"):
        sdf.Union(DISCS[0], sdf.Sphere(torch.zeros(3), 1.0))
    with pytest.raises(ArgumentError, match="one field or more"):
        sdf.Union()
    with unchecked(), pytest.raises(ArgumentError, match="float"):
        sdf.Intersection(DISCS[0], 1.0)  # pyright: ignore[reportArgumentType]
