"""Bounds of activations and gradients of a dense network in closed form, from a few numbers."""

import math
from dataclasses import dataclass
from typing import final

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

_UP = 1 + MILLIONS_OF_ROUNDINGS


@final
@dataclass(frozen=True)
class DenseNetwork:
    """z_t = W_t h_(t-1) + b_t, h_t = phi(z_t), t = 1..depth+1, h_0 = x; the loss reads z_(depth+1). phi(0) = 0.

    Guarantee: upper bounds over all such networks, all inputs and one record, rounded up. `privacy.sensitivity` of a
    network that is at hand is smaller. Cost: microseconds.
    Reference: appendix B of Béthune 2024, where phi has slope 1; the factors of other slopes are ours (see the errata).

    Args:
        loss: The Lipschitz constant of the loss in the logits.
        slope: The Lipschitz constant of phi.
        weight: A bound of the spectral norms of all W_t.
        bias: A bound of the norms of all b_t.
        radius: A bound of the norm of x.
        depth: The number of hidden layers.
    """

    loss: float
    slope: float
    weight: float
    bias: float
    radius: float
    depth: int

    def __post_init__(self) -> None:
        for name in ("loss", "slope", "weight", "bias", "radius"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} is a finite number of 0 or more, got {getattr(self, name)}.")
        if self.depth < 0:
            raise ArgumentError(f"depth is the number of hidden layers, 0 or more, got {self.depth}.")

    def preactivation(self, layer: int) -> float:
        """A bound of ||z_t||: weight ||h_(t-1)|| + bias."""
        self._require(layer, 1)
        return (self.weight * self.activation(layer - 1) + self.bias) * _UP

    def activation(self, layer: int) -> float:
        """A bound of ||h_t||: a^t (X - b) + b, a = slope weight, b = slope bias/(1 - a); X + t slope bias if a = 1."""
        self._require(layer, 0)
        return (self._ratio**layer * self.radius + self.slope * self.bias * _sum_of_powers(self._ratio, layer)) * _UP

    def weight_gradient(self, layer: int) -> float:
        """A bound of the norm of one record's gradient in W_t: loss a^(depth+1-t) ||h_(t-1)||."""
        self._require(layer, 1)
        return self.bias_gradient(layer) * self.activation(layer - 1) * _UP

    def bias_gradient(self, layer: int) -> float:
        """A bound of the norm of one record's gradient in b_t: loss a^(depth+1-t)."""
        self._require(layer, 1)
        return self.loss * self._ratio ** (self.depth + 1 - layer) * _UP

    def gradient(self) -> float:
        """A bound of the norm of one record's gradient in all weights and biases together.

        K^2 = loss^2 sum over t of a^(2 (depth+1-t)) (1 + ||h_(t-1)||^2); for a = 1 and n = depth + 1 layers
        K^2 = loss^2 [n (1 + X^2) + X slope bias depth n + slope^2 bias^2 depth n (2 depth + 1) / 6].
        """
        layers = range(1, self.depth + 2)
        return math.hypot(*(self.bias_gradient(t) for t in layers), *(self.weight_gradient(t) for t in layers)) * _UP

    @property
    def _ratio(self) -> float:
        return self.slope * self.weight

    def _require(self, layer: int, first: int) -> None:
        if not first <= layer <= self.depth + 1:
            raise ArgumentError(f"Layers are numbered {first} to {self.depth + 1}, got {layer}.")


def gradient_deviation(batch: int, distance: float) -> float:
    """The probability that the mean gradient of a batch is farther than distance * K from its expectation, at most.

        P(||mean - expectation|| > u K) <= exp(-(b/8) (u - 2/sqrt(b))^2)  for u >= 2/sqrt(b), 1 below,

    where every record's gradient has norm K at most and records are independent.

    Guarantee: an upper bound, from the bounded differences of a norm. Reference: Boucheron, Lugosi, Massart 2013,
    example 6.3; corollary 4 of chapter 6 of Béthune 2024 prints a larger one.
    """
    if batch < 1 or not distance >= 0.0:
        raise ArgumentError(f"batch is 1 or more and distance 0 or more, got {batch} and {distance}.")
    beyond = distance - 2 / math.sqrt(batch)
    return 1.0 if beyond <= 0 else min(1.0, math.exp(-batch / 8 * beyond**2) * _UP)


def _sum_of_powers(ratio: float, count: int) -> float:
    """1 + a + ... + a^(count-1), without dividing by 1 - a."""
    return math.fsum(ratio**power for power in range(count))
