"""Every operator against the solid that it stands for, written down a second time: signs, distances and the constant.

The boundary of each solid is found from its written inequality alone, by bisection along the edges of a grid. A field
of constant 1 may nowhere be larger than the distance to it, has the sign of the solid, and comes up to that distance
somewhere.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipkit import sdf
from lipkit.sdf._base import constant_of
from lipkit.sdf.combined._base import Combined

Inside = Callable[[Tensor], Tensor]

LEFT, RIGHT = torch.tensor([[-0.6, 0.0], [0.6, 0.25]], dtype=torch.float64)
WIDTH = 0.3
A, B = sdf.Sphere(LEFT, 1.0), sdf.Sphere(RIGHT, 0.8)
BOX = sdf.Box(torch.tensor([-0.5, -1.0]), torch.tensor([1.0, 0.75]))
TURN = torch.tensor([[math.cos(0.5), -math.sin(0.5)], [math.sin(0.5), math.cos(0.5)]], dtype=torch.float64)
SHIFT, STRETCH = torch.tensor([0.75, -0.5]).double(), torch.tensor([0.5, 1.5]).double()


def a(x: Tensor) -> Tensor:
    return 1.0 - (x - LEFT).norm(dim=1)


def b(x: Tensor) -> Tensor:
    return 0.8 - (x - RIGHT).norm(dim=1)


def in_box(x: Tensor) -> Tensor:
    return (x[:, 0] > -0.5) & (x[:, 0] < 1.0) & (x[:, 1] > -1.0) & (x[:, 1] < 0.75)


def in_moved_box(x: Tensor) -> Tensor:
    """To the left of each side of the polygon whose corners were moved one by one."""
    corners = torch.tensor([[-0.5, -1.0], [1.0, -1.0], [1.0, 0.75], [-0.5, 0.75]], dtype=torch.float64)
    moved = torch.stack([TURN @ corner + SHIFT for corner in corners])
    sides = moved.roll(-1, 0) - moved
    away = x[:, None] - moved
    return (sides[:, 0] * away[..., 1] - sides[:, 1] * away[..., 0] > 0).all(1)


def mixed(p: Tensor, q: Tensor) -> Tensor:
    """The quadratic blend in its other form: a mean of both with a bump on it."""
    share = (0.5 + 0.5 * (p - q) / WIDTH).clamp(0, 1)
    return share * p + (1 - share) * q + WIDTH * share * (1 - share)


def cubic(p: Tensor, q: Tensor) -> Tensor:
    near = (WIDTH - (p - q).abs()).clamp(min=0)
    return torch.maximum(p, q) + near**3 / (6 * WIDTH**2)


def root(p: Tensor, q: Tensor) -> Tensor:
    return (p + q + ((p - q) ** 2 + WIDTH**2).sqrt()) / 2


def exponential(p: Tensor, q: Tensor) -> Tensor:
    return WIDTH * ((p / WIDTH).exp() + (q / WIDTH).exp()).log()


BLENDS: dict[sdf.Blend, Callable[[Tensor, Tensor], Tensor]] = {
    sdf.QuadraticBlend(): mixed,
    sdf.CubicBlend(): cubic,
    sdf.RootBlend(): root,
    sdf.ExponentialBlend(): exponential,
}
SOLIDS: list[tuple[Combined, Inside]] = [
    (sdf.Union(A, B), lambda x: (a(x) > 0) | (b(x) > 0)),
    (sdf.Intersection(A, B), lambda x: (a(x) > 0) & (b(x) > 0)),
    (sdf.Difference(A, B), lambda x: (a(x) > 0) & (b(x) < 0)),
    (sdf.Complement(A), lambda x: a(x) < 0),
    *((sdf.SmoothUnion(A, B, WIDTH, one), lambda x, g=g: g(a(x), b(x)) > 0) for one, g in BLENDS.items()),
    *((sdf.SmoothIntersection(A, B, WIDTH, one), lambda x, g=g: g(-a(x), -b(x)) < 0) for one, g in BLENDS.items()),
    (
        sdf.Offset(BOX, 0.5),
        lambda x: (x - x.clamp(torch.tensor([-0.5, -1]), torch.tensor([1, 0.75]))).norm(dim=1) < 0.5,
    ),
    (sdf.Offset(A, -0.25), lambda x: (x - LEFT).norm(dim=1) < 0.75),
    (sdf.Shell(A, 0.5), lambda x: ((x - LEFT).norm(dim=1) < 1.25) & ((x - LEFT).norm(dim=1) > 0.75)),
    (sdf.Moved(BOX, SHIFT), lambda x: in_box(x - SHIFT)),
    (sdf.Moved(BOX, SHIFT, TURN), in_moved_box),
    (sdf.Scaled(BOX, 1.5), lambda x: (x[:, 0] > -0.75) & (x[:, 0] < 1.5) & (x[:, 1] > -1.5) & (x[:, 1] < 1.125)),
    (sdf.Scaled(A, STRETCH), lambda x: ((x[:, 0] + 0.3) / 0.5) ** 2 + (x[:, 1] / 1.5) ** 2 < 1),
    (sdf.NearestMargin(LEFT[None], RIGHT[None]), lambda x: (x - LEFT).norm(dim=1) < (x - RIGHT).norm(dim=1)),
    (
        sdf.Difference(sdf.Moved(sdf.SmoothUnion(A, B, WIDTH), SHIFT, TURN), sdf.Scaled(sdf.Shell(B, 0.5), 0.75)),
        lambda x: (mixed(a((x - SHIFT) @ TURN), b((x - SHIFT) @ TURN)) > 0) & ((b(x / 0.75)).abs() > 0.25),
    ),
]
# No two of the solids have a boundary on these.
X = 3 * torch.rand(2500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(2).sub(1)
every_solid = pytest.mark.parametrize(
    ("field", "inside"), SOLIDS, ids=[f"{type(one).__name__}-{k}" for k, (one, _) in enumerate(SOLIDS)]
)


def boundary(inside: Inside) -> Tensor:
    """Points of the boundary of a solid, right to the last digits, about .03 apart."""
    line = torch.linspace(-4, 4, 301, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), 2)
    ends = [(grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])]
    start, end = (torch.cat([pair[k].reshape(-1, 2) for pair in ends]) for k in (0, 1))
    first = inside(start)
    crosses = first != inside(end)
    start, end, first = start[crosses], end[crosses], first[crosses]
    for _ in range(50):
        middle = (start + end) / 2
        same = (inside(middle) == first)[:, None]
        start, end = torch.where(same, middle, start), torch.where(same, end, middle)
    return start


def test_every_operator_is_here() -> None:
    exported = {one for one in vars(sdf).values() if isinstance(one, type) and issubclass(one, Combined)}
    assert exported == {type(field) for field, _ in SOLIDS}


@every_solid
def test_it_is_positive_inside_and_never_more_than_the_distance(field: Combined, inside: Inside) -> None:
    zeros = boundary(inside)
    assert len(zeros) > 50
    away = torch.cdist(X, zeros, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    value = field(X)
    # The points found are zeros up to a few roundings, and the true distance is at most that to any of them.
    assert bool((value.abs() <= away + 1e-12).all())
    assert float(field(zeros).abs().max()) < 1e-12
    assert torch.equal(value > 0, inside(X))


@every_solid
def test_it_comes_up_to_the_distance_somewhere(field: Combined, inside: Inside) -> None:
    away = torch.cdist(X, boundary(inside)).amin(1)
    far = away > 0.3
    # Zeros .03 apart make distances of .3 too long by .015^2/.6 = .0004; analytic blends near 1 only far out.
    assert float((field(X).abs() / away)[far].max()) > 0.97


@every_solid
def test_its_constant_is_one_and_holds(field: Combined, inside: Inside) -> None:
    del inside
    assert 1 <= constant_of(field) < 1 + 1e-13
    draw, steepest = torch.Generator().manual_seed(1), 0.0
    for size in (3.0, 1e-2, 1e-5):
        y = X + size * torch.randn(X.shape, generator=draw, dtype=torch.float64)
        apart = (X - y).norm(dim=1)
        # Values of size 5 are off by about 1e-15 each.
        assert bool(((field(X) - field(y)).abs() <= apart + 1e-14).all())
        steepest = max(steepest, float(((field(X) - field(y)).abs() / apart).max()))
    # And no smaller one would do.
    assert steepest > 0.97
