"""Rays: nothing is met before the distance that is proven, and what is met is found."""

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import sdf
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.unchecked import unchecked

mpmath.mp.dps = 60


def box(points: Tensor, center: list[float], half: list[float]) -> Tensor:
    """Signed distance of a box, positive inside."""
    beyond = (points - points.new_tensor(center)).abs() - points.new_tensor(half)
    return -(beyond.clamp(min=0).norm(dim=1) + beyond.amax(1).clamp(max=0))


def solids() -> sdf.Field:
    """A hollow cube on its edge with a ball in it, a bowl, two balls that flow together, a lens, a plate like paper."""

    def at(*entries: float) -> Tensor:
        return torch.tensor(entries, dtype=torch.float64)

    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    cube = sdf.Difference(sdf.Box(at(-0.5, -0.5, -0.5), at(0.5, 0.5, 0.5)), sdf.Sphere(at(0, 0, 0), 0.62))
    bowl = sdf.Intersection(sdf.Shell(sdf.Sphere(at(0.9, -0.8, 0.3), 0.4), 0.04), sdf.HalfSpace(at(0, 0, 1), 0.4))
    pair = sdf.SmoothUnion(sdf.Sphere(at(-0.9, 0.9, 0), 0.3), sdf.Sphere(at(-0.9, 0.5, 0.2), 0.2), 0.3)
    lens = sdf.Moved(sdf.Scaled(sdf.Sphere(at(0, 0, 0), 1.0), at(0.3, 0.3, 0.1)), at(0.8, 0.8, 0.5))
    paper = sdf.Box(at(-1.2, -1.2, -0.9), at(1.2, 1.2, -0.8999))
    return sdf.Union(sdf.Moved(cube, at(0, 0, 0), turn), sdf.Sphere(at(0, 0, 0), 0.3), bowl, pair, lens, paper)


def aimed(n: int, seed: int = 0, distance: float = 3.0) -> tuple[Tensor, Tensor]:
    """Rays from a sphere to points of a cube, with directions of any length."""
    draw = torch.Generator().manual_seed(seed)
    origins = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    origins = distance * origins / origins.norm(dim=1, keepdim=True)
    return origins, 2.4 * torch.rand(n, 3, generator=draw, dtype=torch.float64) - 1.2 - origins


def signs_before(f: sdf.Field, origins: Tensor, directions: Tensor, found: sdf.Traced, samples: int = 150) -> int:
    """On how many rays f changes its sign at points before the distance."""
    units = directions / directions.norm(dim=1, keepdim=True)
    first, changed = f(origins) > 0, torch.zeros(len(origins), dtype=torch.bool)
    # Points in [0, 1), denser towards the end.
    for share in torch.linspace(0, 1, samples + 1, dtype=torch.float64)[:-1].sqrt().tolist():
        changed |= (f(origins + share * found.distance[:, None] * units) > 0) != first
    return int(changed.sum())


def exact_first_zero(origin: list[float], direction: list[float], center: list[float], radius: float) -> Any:
    """The length at which a ray first meets a sphere, to sixty digits; None if it does not."""
    o = [mpmath.mpf(a) - mpmath.mpf(c) for a, c in zip(origin, center, strict=True)]
    d = [mpmath.mpf(a) for a in direction]
    size = mpmath.sqrt(sum(a * a for a in d))
    b = sum(a * c for a, c in zip(o, d, strict=True)) / size
    square = b * b - sum(a * a for a in o) + mpmath.mpf(radius) ** 2
    roots = [] if square < 0 else [-b - mpmath.sqrt(square), -b + mpmath.sqrt(square)]
    return min((t for t in roots if t >= 0), default=None)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-6, 9), away=st.sampled_from([0.0, 1.0, 1e6]))
def test_no_ray_oversteps_a_sphere_by_a_single_rounding(seed: int, exponent: int, away: float):
    scale = 10.0**exponent
    center = torch.tensor([away, -away, 2 * away], dtype=torch.float64)
    origins, directions = aimed(12, seed)
    inside = torch.zeros(1, 3, dtype=torch.float64)
    origins, directions = center + torch.cat([origins, inside]), torch.cat([directions, inside + 1]) * scale
    found = sdf.trace(sdf.Sphere(center, 1.0), origins, directions, 10.0, tolerance=1e-7)
    assert not found.stalled.any()
    for k, distance in enumerate(found.distance.tolist()):
        truth = exact_first_zero(origins[k].tolist(), directions[k].tolist(), center.tolist(), 1.0)
        if truth is None:
            assert distance == 10.0 or found.hit[k]
            continue
        assert distance <= truth
        # Where the ray meets the sphere at an angle, a size of 1e-7 is reached within 1e-7 over its sine.
        assert found.hit[k]
        assert truth - distance < 1e-3
    assert found.crossed[-1]


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9, 1e-12])
def test_hits_come_as_close_as_asked(tolerance: float):
    origins = torch.tensor([[-2.0, 0.0, 0.0]], dtype=torch.float64)
    found = sdf.trace(sdf.Sphere(torch.zeros(3), 1.0), origins, -origins, 4.0, tolerance=tolerance)
    assert 0 <= 1.0 - found.distance.item() <= tolerance
    assert found.hit.item()
    assert found.crossed.item()
    assert found.steps.item() <= 3


@pytest.mark.slow
def test_twenty_thousand_rays_through_a_tree_of_solids():
    f = solids()
    origins, directions = aimed(20_000)
    found = sdf.trace(f, origins, directions, 8.0)
    assert signs_before(f, origins, directions, found) == 0
    assert 0.3 < found.hit.double().mean() < 0.9
    assert found.crossed.sum() > 0.98 * found.hit.sum()
    assert found.stalled.sum() < 20


def test_rays_from_inside_end_where_they_leave():
    f = solids()
    draw = torch.Generator().manual_seed(5)
    origins = torch.rand(4000, 3, generator=draw, dtype=torch.float64) - 0.5
    directions = torch.randn(4000, 3, generator=draw, dtype=torch.float64)
    found = sdf.trace(f, origins, directions, 8.0)
    assert signs_before(f, origins, directions, found) == 0
    started = f(origins) > 1e-3
    assert started.sum() > 100
    assert found.crossed[started].all()


@pytest.mark.parametrize("n", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_rays_through_a_network(n: int):
    torch.manual_seed(0)
    layers = [part for ends in ((3, 32), (32, 32), (32, 1)) for part in (lnn.Linear(*ends), lnn.MaxMin())]
    f = sdf.Network(nn.Sequential(*layers[:-1]), torch.zeros(1, 3))
    origins, directions = aimed(n)
    # A level that half of the space lies above, so that rays meet it.
    middle = float(f(directions + origins).median())
    level = sdf.Offset(f, -middle)
    found = sdf.trace(level, origins, directions, 8.0)
    assert signs_before(level, origins, directions, found, samples=40) == 0
    assert found.hit.sum() > n / 4
    assert found.crossed.sum() > 0.95 * found.hit.sum()


def test_a_constant_that_is_too_small_is_seen_by_the_same_count():
    # A wave of slope 6 that claims slope 1: the count of changed signs is able to find what it looks for.
    f = sdf.Function(lambda points: torch.sin(6 * points[:, 0]) - 0.5, 3, 1.0)
    origins, directions = aimed(2000)
    assert signs_before(f, origins, directions, sdf.trace(f, origins, directions, 8.0)) > 100
    honest = sdf.Function(lambda points: torch.sin(6 * points[:, 0]) - 0.5, 3, 6.0)
    assert signs_before(honest, origins, directions, sdf.trace(honest, origins, directions, 8.0)) == 0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    thickness=st.sampled_from([1e-2, 1e-4, 1e-6]),
    place=st.floats(0.3, 2.9),
    slant=st.floats(0, 3),
)
def test_eager_steps_do_not_skip_what_is_thin(seed: int, thickness: float, place: float, slant: float):
    # A plate appears behind a corner: steps grow along the flat wall, and then it is there.
    def wall(points: Tensor) -> Tensor:
        side = -(points[:, 1].abs() + 0.05)
        return torch.maximum(side, box(points, [place, 0.0, 0.0], [thickness, 0.04, 0.04]))

    draw = torch.Generator().manual_seed(seed)
    directions = (
        torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64) + slant * 1e-3 * torch.rand(50, 3, generator=draw).double()
    )
    origins = torch.zeros(50, 3, dtype=torch.float64)
    found = sdf.trace(sdf.Function(wall, 3, 1.0), origins, directions, 3.0, tolerance=1e-8)
    assert found.hit.all()
    assert bool((found.distance < place + 0.01).all())


def test_expected_rates_save_steps():
    # A ray along a wall: every plain step is as long as the wall is near, every step of ours about twice.
    f = sdf.Function(lambda points: -points[:, 1], 3, 1.0)
    origins = torch.tensor([[0.0, 0.01, 0.0]], dtype=torch.float64)
    found = sdf.trace(f, origins, torch.tensor([[1.0, 0.0, 0.0]]), 1.0)
    assert found.distance.item() == 1.0
    assert not found.hit.item()
    # 100 plain ones; the first of ours expects the worst.
    assert found.steps.item() <= 1 + math.ceil(1 / 0.0195)


def test_rays_that_stall_say_so():
    wall = sdf.Function(lambda points: -points[:, 1], 3, 1.0)
    origins = torch.tensor([[1.0, 1e-3, 0.0]], dtype=torch.float64)
    found = sdf.trace(wall, origins, torch.tensor([[1.0, 0.0, 0.0]]), 1.0, most=20)
    assert found.stalled.item()
    assert not found.hit.item()
    assert 0.03 < found.distance.item() < 0.04
    assert found.steps.item() == 20
    # Rounding errors of 1e-13 hide a tolerance of 1e-17.
    ahead = sdf.trace(wall, origins, torch.tensor([[0.0, -1.0, 0.0]]), 1.0, tolerance=1e-17)
    assert ahead.stalled.item()
    assert ahead.distance.item() == pytest.approx(1e-3, abs=1e-12)
    assert ahead.steps.item() < 20


def test_rays_end_where_nothing_is_met():
    nothing = sdf.Function(lambda points: -torch.ones_like(points[:, 0]), 3, 0.0)
    origins, directions = aimed(10)
    found = sdf.trace(nothing, origins, directions, 5.0)
    assert found.distance.tolist() == [5.0] * 10
    assert not found.hit.any()
    assert found.steps.tolist() == [1] * 10
    empty = sdf.trace(nothing, origins[:0], directions[:0], 5.0)
    assert len(empty.distance) == 0


def test_pieces_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    f, (origins, directions) = solids(), aimed(500)
    whole = sdf.trace(f, origins, directions, 8.0)
    monkeypatch.setattr("lipkit.sdf.rays.march._RAYS", 77)
    monkeypatch.setattr("lipkit.sdf.rays.march._POINTS_ON_CPU", 13)
    parts = sdf.trace(f, origins, directions, 8.0)
    # Vectors of other lengths may be computed by other instructions, which round otherwise.
    assert parts.distance == pytest.approx(whole.distance, abs=1e-5)
    assert torch.equal(parts.hit, whole.hit)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"directions": torch.zeros(2, 3)}, ArgumentError, "lead nowhere"),
        ({"directions": torch.full((2, 3), math.nan)}, NonFiniteError, "NaN"),
        ({"directions": torch.ones(1, 3)}, ShapeError, "2 and 1"),
        ({"far": math.inf}, ArgumentError, "far"),
        ({"far": 0.0}, ArgumentError, "far"),
        ({"tolerance": 0.0}, ArgumentError, "tolerance"),
        ({"most": 0}, ArgumentError, "most"),
    ],
)
def test_senseless_rays_are_refused(change: dict[str, object], error: type[Exception], message: str):
    given = {"origins": torch.zeros(2, 3), "directions": torch.ones(2, 3), "far": 1.0, **change}
    with pytest.raises(error, match=message):
        sdf.trace(sdf.Sphere(torch.zeros(3), 1.0), **given)  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_a_hit_is_within_twice_its_tolerance_of_zero():
    # A ray that starts 0.9 tolerances from a ball and leads away from it: |f| doubles on what the first value proves
    # free, which is as much as it can.
    tolerance, origins = 1e-3, torch.tensor([[1 + 0.9e-3, 0.0, 0.0]], dtype=torch.float64)
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    found = sdf.trace(ball, origins, torch.tensor([[1.0, 0.0, 0.0]]), 5.0, tolerance)
    end = ball(origins + found.distance[:, None] * torch.tensor([[1.0, 0.0, 0.0]])).abs()
    assert bool(found.hit)
    assert float(end) == pytest.approx(1.8 * tolerance)
    assert float(end) <= 2 * tolerance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most": 2.5}, r"most is a whole number, got most=2\.5"),
        ({"far": torch.tensor([3.0, 4.0])}, r"far is one real number, got an object of shape \(2,\)"),
        ({"tolerance": "small"}, "tolerance is one real number, got 'small'"),
    ],
)
def test_other_kinds_of_numbers_are_refused(change: dict[str, Any], message: str):
    given = {"origins": torch.zeros(2, 3), "directions": torch.ones(2, 3), "far": 1.0, **change}
    with unchecked(), pytest.raises(ArgumentError, match=message):
        sdf.trace(sdf.Sphere(torch.zeros(3), 1.0), **given)
