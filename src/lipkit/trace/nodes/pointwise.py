"""A scalar function applied to every entry: the node, what it asks of a function, and functions of straight pieces."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Diagonal, Shape
from lipkit.linops._base import Live
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_128, ULP
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes.activations.curve import Interval


class Activation(Live, ABC):
    """A continuous scalar function f, and what is known of it on every interval.

    Ends may be infinite. All answers are rounded outward, so that they hold for the function of real arithmetic.
    """

    @abstractmethod
    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """f, entry by entry, in the dtype of z."""

    @abstractmethod
    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """(alpha, beta): every (f(s) - f(t)) / (s - t) with s, t in [low, high] lies between; +-inf if unbounded."""

    @abstractmethod
    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """An interval that contains f([low, high])."""

    @abstractmethod
    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """An interval that contains every difference quotient of f' on [low, high]: its range of curvature.

        A kink inside makes an end infinite: +inf where the slope jumps up, -inf where it jumps down. So f is convex
        there if the lower end is >= 0, concave if the upper one is <= 0, and f' is Lipschitz if both are finite.
        """

    @property
    def kinks(self) -> tuple[float, ...]:
        """The points at which f has no derivative; by default none."""
        return ()


@final
@dataclass(frozen=True, eq=False)
class Identity(Activation):
    """f(z) = z: marks a value that is kept as it is, where a network is cut."""

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return z

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        one = torch.ones_like(low)
        return one, one

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return low, high

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        zero = torch.zeros_like(low)
        return zero, zero

    def __str__(self) -> str:
        return "identity"


@final
@dataclass(frozen=True, eq=False)
class PiecewiseLinear(Activation):
    """A continuous function with the gradient `gradients[i]` between `knots[i - 1]` and `knots[i]`.

    A gradient is a number, or a live tensor that broadcasts to the entries (PReLU). `fn` evaluates the function and is
    called with those tensors after z; `label` is how it prints.
    """

    label: str
    fn: Callable[..., Tensor]
    knots: tuple[float, ...]
    gradients: tuple[float | Tensor, ...]

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.fn(z, *(g.to(z) for g in self.gradients if isinstance(g, Tensor)))

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        ends = (-torch.inf, *self.knots, torch.inf)
        alpha, beta = torch.full_like(low, torch.inf), torch.full_like(low, -torch.inf)
        for (left, right), slope in zip(pairwise(ends), self._gradients(low), strict=True):
            # A piece counts if it shares more than a point with [low, high], or holds the one point there is.
            met = torch.where(low < high, (low < right) & (high > left), (low <= right) & (high >= left))
            alpha = torch.where(met, torch.minimum(alpha, slope), alpha)
            beta = torch.where(met, torch.maximum(beta, slope), beta)
        return alpha, beta

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        first, last = self._at(low), self._at(high)
        smallest, largest = torch.minimum(first, last), torch.maximum(first, last)
        for knot in self.knots:
            inside = (low < knot) & (knot < high)
            value = self(torch.full_like(low, knot))
            smallest = torch.where(inside, torch.minimum(smallest, value), smallest)
            largest = torch.where(inside, torch.maximum(largest, value), largest)
        # A product and a sum: three roundings at most, relative to the values and to the arguments.
        sizes = torch.stack([x.expand(smallest.shape).abs() for x in (low, high, smallest, largest)])
        size = ROUNDINGS_8 * torch.where(torch.isfinite(sizes), sizes, 0.0).sum(0)
        return smallest - torch.where(smallest == 0, 0.0, size), largest + torch.where(largest == 0, 0.0, size)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        under, over = torch.zeros_like(low), torch.zeros_like(low)
        for knot, (before, after) in zip(self.knots, pairwise(self._gradients(low)), strict=True):
            inside = (low < knot) & (knot < high)
            under = torch.where(inside & (after < before), -torch.inf, under)
            over = torch.where(inside & (after > before), torch.inf, over)
        return under, over

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.knots

    def at_knots(self) -> tuple[float, ...]:
        """The value at each knot, if the gradients are numbers."""
        return tuple(float(self(torch.tensor(knot, dtype=torch.float64))) for knot in self.knots)

    def _at(self, x: Tensor) -> Tensor:
        """f, with its limits at the ends: a flat piece must not multiply 0 by infinity."""
        value = self(torch.where(torch.isfinite(x), x, 0.0))
        gradients = self._gradients(x)
        # On a flat last piece every point beyond the knots has the value of the limit.
        beyond = 1.0 + max((abs(k) for k in self.knots), default=0.0)
        flat = self(torch.where(x > 0, beyond, -beyond).to(x))
        gradient = torch.where(x > 0, gradients[-1], gradients[0])
        limit = torch.where(gradient == 0, flat, x.sign() * gradient.sign() * torch.inf)
        return torch.where(torch.isfinite(x), value, limit)

    def _gradients(self, like: Tensor) -> list[Tensor]:
        return [torch.as_tensor(g, dtype=torch.float64, device=like.device) for g in self.gradients]

    def __str__(self) -> str:
        return self.label


@final
@dataclass(frozen=True, eq=False)
class Pointwise(Node):
    """y_i = f(z_i), with the slopes of f in [alpha_i, beta_i]: Lip = max_i max(|alpha_i|, |beta_i|) in every l_p.

    `domain` is the box that z is known to lie in; None is the whole space.
    """

    activation: Activation
    size: Shape
    domain: Interval | None = None

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    @property
    def is_identity(self) -> bool:
        return isinstance(self.activation, Identity)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self.activation(z)

    @property
    def roundings(self) -> float:
        return 0.0 if self.is_identity else 64.0

    def slopes(self) -> Interval:
        """(alpha, beta), float64: scalars on the whole space, one pair for each entry in a box."""
        if self.domain is not None:
            return self.activation.slopes(*self.domain)
        ends = torch.full((), torch.inf, dtype=torch.float64)
        return self.activation.slopes(-ends, ends)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        alpha, beta = self.slopes()
        return log_up(torch.maximum(alpha.abs(), beta.abs()).max())

    def split(self, p: float) -> Split:
        alpha, beta = self.slopes()
        # An infinite slope leaves no middle; the rest is then infinite too, and nothing becomes NaN.
        finite = torch.isfinite(alpha) & torch.isfinite(beta)
        middle = torch.where(finite, (alpha + beta) / 2, 0.0)
        # Rounding of the middle is paid by the rest, so that [alpha, beta] stays covered.
        spread = torch.maximum(beta - middle, middle - alpha) * (1 + ROUNDINGS_8) + ULP * middle.abs()
        exact = alpha == beta
        spread = torch.where(exact, 0.0, spread)
        return Split(Diagonal(middle, self.size), Diagonal(spread, self.size))

    def within(self, reach: Reach) -> "Pointwise":
        reach = tighten(reach)
        return replace(self, domain=(reach.low, reach.high))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        low, high = self.activation.values(reach.low, reach.high)
        alpha, beta = self.activation.slopes(reach.low, reach.high)
        steepest = torch.maximum(alpha.abs(), beta.abs()).max()
        center = self.activation(reach.center)
        # The center is rounded by a few units in the last place of an elementary function's value.
        error = ROUNDINGS_128 * torch.linalg.vector_norm(center.abs() + reach.center.abs())
        return reach_of(low, high, center, steepest * reach.radius + error)

    def __str__(self) -> str:
        return str(self.activation)


def leaky_relu(slope: float) -> PiecewiseLinear:
    """z for z >= 0, slope z below."""
    return PiecewiseLinear(
        f"leaky_relu({slope:g})", lambda z: functional.leaky_relu(z, slope), (0.0,), (float(slope), 1.0)
    )


def prelu(slope: Float[Tensor, "..."]) -> PiecewiseLinear:
    """z for z >= 0, slope z below, with a live slope that broadcasts to the entries."""
    return PiecewiseLinear("prelu", lambda z, a: torch.where(z >= 0, z, a * z), (0.0,), (slope, 1.0))


def clamp(low: float, high: float) -> PiecewiseLinear:
    """z cut to [low, high]; an end may be infinite. Slopes 0 outside, 1 inside."""
    label = f"clamp({low:g}, {high:g})"
    if low >= high:
        # torch lets the upper end win: everything becomes `high`.
        return PiecewiseLinear(label, lambda z: z.clamp(low, high), (), (0.0,))
    knots = tuple(k for k in (low, high) if abs(k) < torch.inf)
    gradients = (*((0.0,) if low > -torch.inf else ()), 1.0, *((0.0,) if high < torch.inf else ()))
    return PiecewiseLinear(label, lambda z: z.clamp(low, high), knots, gradients)


def softshrink(width: float) -> PiecewiseLinear:
    """z moved towards 0 by `width`, and 0 within it."""
    return PiecewiseLinear("softshrink", lambda z: functional.softshrink(z, width), (-width, width), (1.0, 0.0, 1.0))


RELU = PiecewiseLinear("relu", torch.relu, (0.0,), (0.0, 1.0))
ABS = PiecewiseLinear("abs", torch.abs, (0.0,), (-1.0, 1.0))
