"""Every class of fields that lipkit.sdf exports, with examples and what is known of them without lipkit.

To register a class, add a line to `EXAMPLES`: one field or more, each with what of the following is known. The
conformance suite checks everything that is there, and fails while a class is missing.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import torch
from torch import Tensor, nn

from lipkit import sdf

# Numbers of mpmath, which has no types.
Number = Any
Reference = Callable[[Sequence[Number]], Number]
Inside = Callable[[Tensor], Tensor]

DIGITS = 60


@dataclass(frozen=True, eq=False)
class Example:
    """A field, its value in 60 digits, who is inside, and whether |f| is the distance itself, not just below it."""

    field: sdf.Field
    reference: Reference | None = None
    inside: Inside | None = None
    exact: bool = False


def draw(seed: int, *shape: int) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(x: Tensor) -> list[Number]:
    """The same numbers, exactly."""
    return [mpmath.mpf(float(one)) for one in x.flatten()]


def length(x: Sequence[Number]) -> Number:
    return mpmath.sqrt(mpmath.fsum(one**2 for one in x))


def minus(x: Sequence[Number], y: Sequence[Number]) -> list[Number]:
    return [a - b for a, b in zip(x, y, strict=True)]


CENTER, LOW, HIGH = torch.tensor([0.3, -0.2]), torch.tensor([-1.0, -0.7]), torch.tensor([0.9, 1.1])
NORMAL, CLOUD = torch.tensor([3.0, -1e-3]), draw(0, 30, 2)
BALL, BOX, HALF = sdf.Sphere(CENTER, 0.8), sdf.Box(LOW, HIGH), sdf.HalfSpace(NORMAL, 0.7)
TURN = torch.linalg.qr(draw(1, 2, 2)).Q
SHIFT = torch.tensor([0.4, -0.3])
STRETCH = torch.tensor([0.5, 1.5])


def ball(x: Sequence[Number]) -> Number:
    return mpmath.mpf(0.8) - length(minus(x, numbers(CENTER)))


def box(x: Sequence[Number]) -> Number:
    beyond = [max(low - a, a - high) for a, low, high in zip(x, numbers(LOW), numbers(HIGH), strict=True)]
    return -length([max(one, 0) for one in beyond]) if max(beyond) > 0 else -max(beyond)


def box_mesh() -> sdf.Mesh:
    """The cube [-1, 1]^3, its faces counterclockwise from outside."""
    vertices = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    squares = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))
    return sdf.Mesh(vertices, torch.tensor([face for a, b, c, d in squares for face in ((a, b, c), (a, c, d))]))


def cube(x: Sequence[Number]) -> Number:
    beyond = [abs(a) - 1 for a in x]
    return -length([max(one, 0) for one in beyond]) if max(beyond) > 0 else -max(beyond)


def half(x: Sequence[Number]) -> Number:
    normal = numbers(NORMAL)
    return (mpmath.mpf(0.7) - mpmath.fdot(normal, x)) / length(normal)


def in_ball(x: Tensor) -> Tensor:
    return ((x - CENTER) ** 2).sum(1) < 0.8**2


def in_box(x: Tensor) -> Tensor:
    return ((x > LOW) & (x < HIGH)).all(1)


def in_half(x: Tensor) -> Tensor:
    return (x * NORMAL).sum(1) < 0.7


def ranked(cloud: Tensor, k: int, mean: bool = False) -> Reference:
    def value(x: Sequence[Number]) -> Number:
        found = sorted(length(minus(x, numbers(one))) for one in cloud)[:k]
        return -mpmath.fsum(found) / k if mean else -found[-1]

    return value


def flat(origins: Tensor, bases: Tensor) -> Reference:
    """By the normal equations in 60 digits, of the directions as they were given."""

    def away(x: Sequence[Number], origin: Tensor, basis: Tensor) -> Number:
        rows = [numbers(row) for row in basis if bool(row.any())]
        left = minus(x, numbers(origin))
        if rows:
            gram = mpmath.matrix([[mpmath.fdot(a, b) for b in rows] for a in rows])
            share = mpmath.lu_solve(gram, mpmath.matrix([mpmath.fdot(a, left) for a in rows]))
            for weight, row in zip(share, rows, strict=True):
                left = minus(left, [weight * one for one in row])
        return length(left)

    return lambda x: -min(away(x, origin, basis) for origin, basis in zip(origins, bases, strict=True))


def perceptron(first: nn.Linear, last: nn.Linear) -> Reference:
    """A layer, ReLU and one output, in 60 digits."""

    def value(x: Sequence[Number]) -> Number:
        hidden = [
            mpmath.fdot(numbers(w), x) + mpmath.mpf(float(b)) for w, b in zip(first.weight, first.bias, strict=True)
        ]
        return mpmath.fdot(numbers(last.weight), [max(one, 0) for one in hidden]) + mpmath.mpf(float(last.bias))

    return value


def network() -> Example:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)).double().requires_grad_(False)
    first, last = model[0], model[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return Example(sdf.Network(model, torch.zeros(1, 2, dtype=torch.float64)), perceptron(first, last))


def on_a_line(positive: Sequence[float], negative: Sequence[float]) -> Reference:
    """The distance to the nearest midpoint between neighbours of two kinds, and the sign of the nearest point."""

    def value(x: Sequence[Number]) -> Number:
        points = sorted([(mpmath.mpf(p), 1) for p in positive] + [(mpmath.mpf(p), -1) for p in negative])
        walls = [(p + q) / 2 for (p, a), (q, b) in itertools.pairwise(points) if a != b]
        side = min((abs(x[0] - p), kind) for p, kind in points)[1]
        return side * min(abs(x[0] - wall) for wall in walls)

    return value


def nearer(a: Tensor, b: Tensor) -> Inside:
    def value(x: Tensor) -> Tensor:
        return torch.stack([(x - p).norm(dim=1) for p in a]).amin(0) < torch.stack(
            [(x - p).norm(dim=1) for p in b]
        ).amin(0)

    return value


def smooth(a: Number, b: Number, width: float, excess: Callable[[Number], Number]) -> Number:
    """The textbook form of a blend: a maximum and an excess of the gap."""
    w = mpmath.mpf(width)
    return max(a, b) + w * excess(abs(a - b) / w)


def power(exponent: int, share: int) -> Callable[[Number], Number]:
    return lambda t: max(1 - t, 0) ** exponent / share


def root(t: Number) -> Number:
    return (mpmath.sqrt(t * t + 1) - t) / 2


def exponential(t: Number) -> Number:
    return mpmath.log(1 + mpmath.exp(-t)) if t < 1000 else mpmath.mpf(0)


def turned_back(x: Sequence[Number]) -> list[Number]:
    away = minus(x, numbers(SHIFT))
    return [mpmath.fdot(numbers(column), away) for column in TURN.mT]


A, B = draw(2, 4, 2) + 0.5, draw(3, 5, 2) - 0.5
ORIGINS, BASES = draw(4, 3, 2), draw(5, 3, 1, 2) * torch.tensor([1e-3, 1.0, 1e5], dtype=torch.float64)[:, None, None]
ORIGINS_3, BASES_3 = draw(6, 4, 3), torch.cat([draw(7, 3, 2, 3), torch.zeros(1, 2, 3)])
WIDE = draw(8, 60, 12)

EXAMPLES: dict[type[sdf.Field], tuple[Example, ...]] = {
    sdf.Sphere: (Example(BALL, ball, in_ball, exact=True),),
    sdf.Box: (Example(BOX, box, in_box, exact=True),),
    sdf.HalfSpace: (Example(HALF, half, in_half, exact=True),),
    sdf.Points: (
        Example(sdf.Points(CLOUD), ranked(CLOUD, 1)),
        Example(sdf.Points(CLOUD, 4), ranked(CLOUD, 4)),
        Example(sdf.Points(CLOUD, 4, mean=True), ranked(CLOUD, 4, mean=True)),
        Example(sdf.Points(WIDE, 3), ranked(WIDE, 3)),
        Example(sdf.Points(WIDE, 60, mean=True), ranked(WIDE, 60, mean=True)),
    ),
    sdf.Flats: (
        Example(sdf.Flats(ORIGINS, BASES), flat(ORIGINS, BASES)),
        Example(sdf.Flats(ORIGINS_3, BASES_3), flat(ORIGINS_3, BASES_3)),
        Example(sdf.Flats(ORIGINS, torch.zeros(3, 0, 2)), ranked(ORIGINS, 1)),
    ),
    sdf.Mesh: (Example(box_mesh(), cube, lambda x: (x.abs() < 1).all(1), exact=True),),
    sdf.Network: (network(),),
    sdf.Function: (
        Example(
            sdf.Function(lambda x: x[:, 0] / 2 + x[:, 1].sin() / 2, 2, 1.0),
            lambda x: (x[0] + mpmath.sin(x[1])) / 2,
            lambda x: x[:, 0] + x[:, 1].sin() > 0,
        ),
    ),
    sdf.Union: (
        Example(
            sdf.Union(BALL, BOX, HALF),
            lambda x: max(ball(x), box(x), half(x)),
            lambda x: in_ball(x) | in_box(x) | in_half(x),
        ),
    ),
    sdf.Intersection: (
        Example(sdf.Intersection(BALL, BOX), lambda x: min(ball(x), box(x)), lambda x: in_ball(x) & in_box(x)),
        Example(sdf.Intersection(BALL, network().field), None),
    ),
    sdf.Difference: (
        Example(sdf.Difference(BOX, BALL), lambda x: min(box(x), -ball(x)), lambda x: in_box(x) & ~in_ball(x)),
    ),
    sdf.Complement: (Example(sdf.Complement(BOX), lambda x: -box(x), lambda x: ~in_box(x), exact=True),),
    sdf.SmoothUnion: (
        Example(sdf.SmoothUnion(BALL, BOX, 0.5), lambda x: smooth(ball(x), box(x), 0.5, power(2, 4))),
        Example(sdf.SmoothUnion(BALL, BOX, 0.5, sdf.CubicBlend()), lambda x: smooth(ball(x), box(x), 0.5, power(3, 6))),
    ),
    sdf.SmoothIntersection: (
        Example(sdf.SmoothIntersection(BALL, BOX, 0.5), lambda x: -smooth(-ball(x), -box(x), 0.5, power(2, 4))),
        Example(
            sdf.SmoothIntersection(BALL, BOX, 0.5, sdf.RootBlend()), lambda x: -smooth(-ball(x), -box(x), 0.5, root)
        ),
        Example(
            sdf.SmoothIntersection(BALL, BOX, 0.25, sdf.ExponentialBlend()),
            lambda x: -smooth(-ball(x), -box(x), 0.25, exponential),
        ),
    ),
    sdf.Offset: (
        Example(
            sdf.Offset(BALL, 0.25),
            lambda x: ball(x) + mpmath.mpf(0.25),
            lambda x: ((x - CENTER) ** 2).sum(1) < 1.05**2,
            True,
        ),
        Example(
            sdf.Offset(BOX, -0.25),
            lambda x: box(x) - mpmath.mpf(0.25),
            lambda x: ((x > LOW + 0.25) & (x < HIGH - 0.25)).all(1),
        ),
    ),
    sdf.Shell: (
        Example(
            sdf.Shell(BALL, 0.5),
            lambda x: mpmath.mpf(0.25) - abs(ball(x)),
            lambda x: ((x - CENTER).norm(dim=1) - 0.8).abs() < 0.25,
        ),
    ),
    sdf.Moved: (
        Example(
            sdf.Moved(BOX, SHIFT), lambda x: box(minus(x, numbers(SHIFT))), lambda x: in_box(x - SHIFT), exact=True
        ),
        Example(
            sdf.Moved(BOX, SHIFT, TURN), lambda x: box(turned_back(x)), lambda x: in_box((x - SHIFT) @ TURN), exact=True
        ),
    ),
    sdf.Scaled: (
        Example(sdf.Scaled(BOX, 0.5), lambda x: box([2 * one for one in x]) / 2, lambda x: in_box(2 * x), exact=True),
        Example(
            sdf.Scaled(BALL, STRETCH),
            lambda x: ball([a / b for a, b in zip(x, numbers(STRETCH), strict=True)]) / 2,
            lambda x: in_ball(x / STRETCH),
        ),
    ),
    sdf.NearestMargin: (
        Example(sdf.NearestMargin(A, B), lambda x: (ranked(A, 1)(x) - ranked(B, 1)(x)) / 2, nearer(A, B)),
    ),
    sdf.NearestBoundary: (
        Example(sdf.NearestBoundary(A, B), None, nearer(A, B), exact=True),
        Example(
            sdf.NearestBoundary(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[-2.0], [2.5], [8.0]])),
            on_a_line([0.0, 1.0, 5.0], [-2.0, 2.5, 8.0]),
            lambda x: ((x > -1) & (x < 1.75) | (x > 3.75))[:, 0],
            exact=True,
        ),
    ),
}

CASES = [(kind.__name__, example) for kind, some in EXAMPLES.items() for example in some]
