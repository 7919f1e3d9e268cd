"""Activations made of straight pieces."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes.activations.curve import Interval
from lipkit.trace.nodes.activations.rounded_kinks import Softened, hypotenuse
from lipkit.trace.nodes.pointwise import Activation


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

    def smoothed(self, mu: float) -> Activation:
        """sqrt(z^2 + mu^2) for |z|; otherwise the relu in every knot becomes mu softplus(. / mu)."""
        if not mu > 0:
            raise ArgumentError(f"Smoothing needs mu > 0, got {mu}.")
        # A live gradient is no number to compare, and may hold several.
        fixed = tuple(g for g in self.gradients if not isinstance(g, Tensor))
        if self.knots == (0.0,) and fixed == (-1.0, 1.0):
            return hypotenuse(mu)
        return Softened(self, self.knots, self.gradients, mu)

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
