"""Activations made of straight pieces."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.trace.nodes.pointwise import Activation, Interval


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
        for (left, right), gradient in zip(pairwise(ends), self.gradients, strict=True):
            # A piece counts if it shares more than a point with [low, high], or holds the one point there is.
            met = torch.where(low < high, (low < right) & (high > left), (low <= right) & (high >= left))
            slope = torch.as_tensor(gradient, dtype=torch.float64, device=low.device)
            alpha = torch.where(met, torch.minimum(alpha, slope), alpha)
            beta = torch.where(met, torch.maximum(beta, slope), beta)
        return alpha, beta

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        first, last = self(low), self(high)
        smallest, largest = torch.minimum(first, last), torch.maximum(first, last)
        for knot in self.knots:
            inside = (low < knot) & (knot < high)
            value = self(torch.full_like(low, knot))
            smallest = torch.where(inside, torch.minimum(smallest, value), smallest)
            largest = torch.where(inside, torch.maximum(largest, value), largest)
        # A product and a sum: three roundings at most, relative to the value and to the argument.
        size = 2.0**-50 * torch.where(torch.isfinite(low), low.abs(), 0.0).maximum(
            torch.where(torch.isfinite(high), high.abs(), 0.0)
        )
        return smallest - torch.where(smallest == 0, 0.0, size), largest + torch.where(largest == 0, 0.0, size)

    def __str__(self) -> str:
        return self.label


RELU = PiecewiseLinear("relu", torch.relu, (0.0,), (0.0, 1.0))
