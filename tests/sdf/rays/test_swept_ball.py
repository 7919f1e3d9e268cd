"""Balls along paths: closed forms, and distances along the path in small steps."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import sdf
from lipkit.errors import ArgumentError
from support.unchecked import unchecked


@dataclass(frozen=True)
class UpTo:
    """A proven deviation, as a number."""

    upper: float


BALL = sdf.Sphere(torch.zeros(2), 1.0)


def along(path: Tensor, n: int = 20_001) -> tuple[Tensor, Tensor]:
    """Points of a polyline with their lengths from its start."""
    edges = path.diff(dim=0)
    ends = torch.cat([torch.zeros(1, dtype=path.dtype), edges.norm(dim=1).cumsum(0)])
    lengths = torch.linspace(0, float(ends[-1]), n, dtype=path.dtype)
    k = (torch.searchsorted(ends, lengths, right=True) - 1).clamp(0, len(edges) - 1)
    share = (lengths - ends[k]) / edges.norm(dim=1)[k]
    return path[k] + share[:, None] * edges[k], lengths


@pytest.mark.parametrize(
    ("height", "radius", "upper"), [(0.5, 0.2, 0.0), (0.0, 0.2, 0.0), (1.1, 0.2, 0.0), (0.5, 0.1, 0.1)]
)
def test_a_ball_stops_where_it_touches(height: float, radius: float, upper: float):
    path = torch.tensor([[-3.0, height], [3.0, height]], dtype=torch.float64)
    found = sdf.sweep(BALL, path, radius, UpTo(upper) if upper else None, tolerance=1e-9)
    truth = 3 - math.sqrt((1 + radius + upper) ** 2 - height**2)
    assert not found.free
    # The center of the ball is 1e-9 from where it must stop, over the sine of the angle at which it comes.
    assert truth - 1e-7 < found.until <= truth


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), corners=st.integers(2, 6), radius=st.floats(0, 0.5))
def test_no_position_before_the_end_touches(seed: int, corners: int, radius: float):
    draw = torch.Generator().manual_seed(seed)
    path = 4 * torch.rand(corners, 2, generator=draw, dtype=torch.float64) - 2
    path[0] *= 2 / path[0].abs().max()
    found = sdf.sweep(BALL, path, radius)
    points, lengths = along(path)
    room = points.norm(dim=1) - 1 - radius
    assert bool((room[lengths < found.until] > -1e-12).all())
    total = float(path.diff(dim=0).norm(dim=1).sum())
    if found.free:
        assert found.until == pytest.approx(total, rel=1e-12)
        assert found.until <= total * (1 + 1e-15)
    # What blocks is there: not far behind the end the ball is within the tolerance of the shape.
    elif found.until < lengths[-1]:
        after = room[lengths >= found.until - 1e-3]
        assert after.min() < 2e-3


def test_a_free_path_is_free_to_its_end():
    path = torch.tensor([[-3.0, 0.0], [-3.0, -3.0], [-3.0, -3.0], [3.0, -3.0], [3.0, 3.0]])
    found = sdf.sweep(BALL, path, 1.9)
    assert found.free
    assert found.until == pytest.approx(15.0, rel=1e-13)
    assert found.until <= 15.0
    assert not sdf.sweep(BALL, path, 2.01).free


def test_a_ball_that_starts_inside_is_nowhere_free():
    for x in (0.0, 0.9, 1.1):
        found = sdf.sweep(BALL, torch.tensor([[x, 0.0], [9.0, 0.0]]), 0.2)
        assert not found.free
        assert found.until == 0.0


def test_a_deviation_keeps_the_ball_away_from_the_data():
    # The data are a larger circle than the field believes.
    data = 1.3 * torch.stack([torch.linspace(0, 6.28, 5000).cos(), torch.linspace(0, 6.28, 5000).sin()], 1).double()
    path = torch.tensor([[-3.0, 0.2], [3.0, 0.2]], dtype=torch.float64)
    for deviation, safe in ((None, False), (UpTo(0.3 + 1e-6), True)):
        found = sdf.sweep(BALL, path, 0.1, deviation)
        points, lengths = along(path, 2001)
        room = torch.cdist(points[lengths < found.until], data).amin()
        assert bool(room >= 0.1) is safe


@pytest.mark.parametrize(
    ("path", "radius", "message"),
    [
        (torch.ones(3, 2), 0.1, "two different corners"),
        (torch.ones(1, 2), 0.1, "two different corners"),
        (torch.eye(2), -1.0, "radius"),
        (torch.eye(2), math.nan, "radius"),
    ],
)
def test_senseless_sweeps_are_refused(path: Tensor, radius: float, message: str):
    with pytest.raises(ArgumentError, match=message):
        sdf.sweep(BALL, path, radius)
    with pytest.raises(ArgumentError, match="tolerance"):
        sdf.sweep(BALL, torch.eye(2), 0.1, tolerance=0.0)


@pytest.mark.parametrize("unit", [1e-310, 1e-160, 1e308])
def test_edges_whose_squares_leave_float64_are_refused(unit: float):
    # No tolerance was given, so none is spoken of.
    with pytest.raises(ArgumentError, match="Edges of a path have lengths whose squares float64 holds"):
        sdf.sweep(BALL, torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64) * unit, 0.1)


def test_other_kinds_of_numbers_are_refused():
    with unchecked(), pytest.raises(ArgumentError, match="most is a whole number"):
        sdf.sweep(BALL, torch.eye(2), 0.1, most=2.5)  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match="radius is one real number"):
        sdf.sweep(BALL, torch.eye(2), torch.ones(2))  # pyright: ignore[reportArgumentType]
