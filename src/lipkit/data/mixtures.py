"""Mixtures of Gaussians, whose density is known in closed form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, ShapeError


@final
@dataclass(frozen=True)
class GaussianMixture:
    """A law on R^d: with probability w_i a normal law around m_i, of deviation s_i in every direction.

    p(x) = sum_i w_i (2 pi s_i^2)^(-d/2) exp(-|x - m_i|^2 / (2 s_i^2)).

    Args:
        means: Centres m_i, each with d coordinates.
        deviations: Standard deviations s_i.
        weights: Probabilities w_i, which add up to 1.
    """

    means: tuple[tuple[float, ...], ...]
    deviations: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.means or not len(self.means) == len(self.deviations) == len(self.weights):
            raise ShapeError(
                f"A mixture needs a mean, a deviation and a weight for each component, got {len(self.means)}, "
                f"{len(self.deviations)} and {len(self.weights)}."
            )
        if len({len(mean) for mean in self.means}) != 1 or not self.means[0]:
            raise ShapeError(f"All means live in one space R^d, d >= 1, got {self.means}.")
        if not all(math.isfinite(value) for mean in self.means for value in mean):
            raise ArgumentError(f"Means are finite, got {self.means}.")
        if not all(0 < deviation < math.inf for deviation in self.deviations):
            raise ArgumentError(f"Deviations are positive and finite, got {self.deviations}.")
        # Decimal fractions such as .9 and .1 need not add to 1 in binary.
        if not all(weight > 0 for weight in self.weights) or abs(sum(self.weights) - 1) > 1e-12:
            raise ArgumentError(f"Weights are positive and add up to 1, got {self.weights}.")

    def draw(self, count: int, seed: int) -> Float64[Tensor, "count dimensions"]:
        """Independent points; the same for the same seed."""
        return self._draw(count, generator(seed))

    def _draw(self, count: int, random: torch.Generator) -> Float64[Tensor, "count dimensions"]:
        means, deviations, weights = self._tensors()
        chosen = torch.multinomial(weights, count, replacement=True, generator=random)
        noise = torch.randn(count, means.shape[1], generator=random, dtype=torch.float64)
        return means[chosen] + deviations[chosen, None] * noise

    def log_density(self, points: Float64[Tensor, "count dimensions"]) -> Float64[Tensor, " count"]:
        """log p at each point, in float64 and without underflow."""
        means, deviations, weights = self._tensors()
        if points.shape[1] != means.shape[1]:
            raise ShapeError(f"The mixture lives in R^{means.shape[1]}, got points of R^{points.shape[1]}.")
        squares = ((points[:, None] - means) / deviations[:, None]).square().sum(2)
        heights = weights.log() - means.shape[1] * (deviations.log() + 0.5 * math.log(2 * math.pi))
        return torch.logsumexp(heights - 0.5 * squares, 1)

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        means, deviations, weights = (
            torch.tensor(value, dtype=torch.float64) for value in (self.means, self.deviations, self.weights)
        )
        return means, deviations, weights


def from_mixtures(classes: Mapping[str, GaussianMixture], count: int, seed: int) -> Examples:
    """`count` points, as evenly over the classes as possible (the first ones get one more), in an order drawn too.

    Args:
        classes: The law of each class, by its name.
        count: Number of points.
        seed: Draws points and order.
    """
    if count < len(classes) or not classes:
        raise ArgumentError(f"At least one point for each class is needed, got {count} for {len(classes)}.")
    if len(spaces := {len(law.means[0]) for law in classes.values()}) != 1:
        raise ShapeError(f"All classes live in one space, got dimensions {sorted(spaces)}.")
    random = generator(seed)
    sizes = [count // len(classes) + (place < count % len(classes)) for place in range(len(classes))]
    points = torch.cat([law._draw(size, random) for law, size in zip(classes.values(), sizes, strict=True)])
    labels = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor(sizes))
    return Examples(points.float(), labels, tuple(classes), "Gaussian mixtures").at(
        torch.randperm(count, generator=random)
    )


def two_modes() -> dict[str, GaussianMixture]:
    """Two laws on the line that overlap in their small modes: what one class is sure of is the other's rare case.

    P = .9 N(-2, .3^2) + .1 N(1, .1^2), and Q is P mirrored at 0; class 0 is Q, class 1 is P. A 1-Lipschitz network
    trained with a large factor on its logits fits the small modes, with a small one it takes them for noise.
    Reference: Béthune et al., Pay attention to your loss, NeurIPS 2022 (we read the second number as a deviation).
    """
    weights, deviations = (0.9, 0.1), (0.3, 0.1)
    return {
        "Q": GaussianMixture(((2.0,), (-1.0,)), deviations, weights),
        "P": GaussianMixture(((-2.0,), (1.0,)), deviations, weights),
    }
