"""Piecewise linear activations with their kinks rounded off."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_32, ULP
from lipkit.trace.nodes.activations.curve import Curve, Interval, Station
from lipkit.trace.nodes.activations.smooth import Smooth
from lipkit.trace.nodes.pointwise import Activation, PiecewiseLinear


def round_kinks(activation: PiecewiseLinear, mu: float) -> Activation:
    """A function without kinks that tends to the given one as mu > 0 tends to 0.

    sqrt(z^2 + mu^2) for |z|; otherwise the relu in every knot becomes mu softplus(. / mu).
    """
    if not mu > 0:
        raise ArgumentError(f"Smoothing needs mu > 0, got {mu}.")
    # A live gradient is no number to compare, and may hold several.
    fixed = tuple(g for g in activation.gradients if not isinstance(g, Tensor))
    if activation.knots == (0.0,) and fixed == (-1.0, 1.0):
        return hypotenuse(mu)
    return Softened(activation, mu)


@final
@dataclass(frozen=True, eq=False)
class Softened(Activation):
    """f(z) + sum_k (g_k - g_{k-1}) (mu softplus((z - t_k) / mu) - relu(z - t_k)): a piecewise linear f without kinks.

    Off by at most mu log 2 sum_k |g_k - g_{k-1}|. The slope is g_0 plus rising and falling sigmoids, each exact on an
    interval: the range is exact for one knot, and an enclosure for several. Curvature at most |jump| / (4 mu) a knot.
    """

    inner: PiecewiseLinear
    mu: float

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        y = self.inner(z)
        for knot, jump in zip(self.inner.knots, self._jumps(z), strict=True):
            # mu softplus(t / mu) - relu(t) = mu log(1 + exp(-|t| / mu)).
            y = y + jump.to(z) * self.mu * torch.log1p(torch.exp(-(z - knot).abs() / self.mu))
        return y

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        # A gradient may be one for each channel; the sum of the jumps below broadcasts it to the entries.
        first = _number(self.inner.gradients[0], low) + torch.zeros_like(low)
        under, over = self._sum(first, low, high, torch.sigmoid, 1.0, None)
        # The sigmoids fall from knot to knot, so the slope is a mean of the gradients.
        every = [_number(g, low) for g in self.inner.gradients]
        smallest, largest = reduce(torch.minimum, every), reduce(torch.maximum, every)
        return torch.maximum(under, smallest), torch.minimum(over, largest)

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        def bump(s: Tensor) -> Tensor:
            sigmoid = torch.sigmoid(s)
            return sigmoid * (1 - sigmoid)

        under, over = self._sum(torch.zeros_like(low), low, high, bump, 1 / self.mu, 0.25)
        # A bump is never negative: without falling knots the function is convex, without rising ones concave.
        jumps = self._jumps(low)
        falls, rises = (reduce(torch.maximum, [(s * jump).clamp(min=0.0) for jump in jumps]) for s in (-1, 1))
        return torch.where(falls == 0, under.clamp(min=0.0), under), torch.where(rises == 0, over.clamp(max=0.0), over)

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        # What is added lies between 0 and mu log 2 times the jump.
        under, over = self.inner.values(low, high)
        for jump in self._jumps(low):
            extra = jump * self.mu * (torch.log(torch.full((), 2.0, dtype=torch.float64)) * (1 + ROUNDINGS_8))
            under, over = under + extra.clamp(max=0.0), over + extra.clamp(min=0.0)
        return under, over

    def _sum(
        self,
        first: Tensor,
        low: Tensor,
        high: Tensor,
        shape: Callable[[Tensor], Tensor],
        factor: float,
        peak: float | None,
    ) -> Interval:
        """first + sum of jump factor shape((z - knot) / mu), whose shape rises, or has its peak at 0."""
        under, over, total = first, first, torch.zeros_like(low)
        for knot, jump in zip(self.inner.knots, self._jumps(low), strict=True):
            left, right = shape((low - knot) / self.mu), shape((high - knot) / self.mu)
            smallest, largest = torch.minimum(left, right), torch.maximum(left, right)
            if peak is not None:
                largest = torch.where((low < knot) & (knot < high), peak, largest)
            rising = jump >= 0
            under = under + factor * jump * torch.where(rising, smallest, largest)
            over = over + factor * jump * torch.where(rising, largest, smallest)
            total = total + factor * jump.abs()
        # A sigmoid is within three units in the last place of 1; a product and a sum add two for each knot.
        slack = (total + under.abs() + over.abs()) * ROUNDINGS_32
        return under - slack, over + slack

    def _jumps(self, like: Tensor) -> list[Tensor]:
        return [_number(after, like) - _number(before, like) for before, after in pairwise(self.inner.gradients)]

    def __str__(self) -> str:
        return f"{self.inner} smoothed by {self.mu:g}"


def hypotenuse(mu: float) -> Smooth:
    """sqrt(z^2 + mu^2): at most mu above |z|, with the curvature mu^2 / (z^2 + mu^2)^(3/2) <= 1 / mu."""

    def at(z: Tensor) -> Tensor:
        return torch.hypot(z, torch.full_like(z, mu))

    return Smooth(
        f"abs smoothed by {mu:g}",
        Curve(at, (torch.inf, torch.inf), (Station(0.0, mu),)),
        Curve(lambda z: z / at(z), (-1.0, 1.0)),
        Curve(lambda z: (mu / at(z)) ** 2 / at(z), (0.0, 0.0), (Station(0.0, 1 / mu, ULP / mu),)),
    )


def _number(value: float | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)
