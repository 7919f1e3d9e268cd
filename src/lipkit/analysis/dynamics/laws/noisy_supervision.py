"""Gradients and labels with noise, to see what the laws predict: both changes are one call in a training loop."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from lipkit.errors import ArgumentError


class GradientNoise(ABC):
    """The law of the noise of each entry of a gradient: independent, with mean 0."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """The standard deviation, which is all that `isotropic_noise` and the laws need to know."""

    @abstractmethod
    def draw(self, shape: torch.Size, generator: torch.Generator) -> Float64[Tensor, "..."]:
        """Independent draws."""


@final
@dataclass(frozen=True)
class GaussianGradientNoise(GradientNoise):
    """Normal draws of one standard deviation; 0 for no noise, so that gradients are only scaled."""

    deviation: float = 1.0  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        _check_size("The deviation", self.deviation)

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Float64[Tensor, "..."]:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * self.deviation


@final
@dataclass(frozen=True)
class UniformGradientNoise(GradientNoise):
    """Uniform draws from [-half_width, half_width], whose deviation is half_width / 3^(1/2)."""

    half_width: float = 0.5

    def __post_init__(self) -> None:
        _check_size("The half width", self.half_width)

    @property
    def deviation(self) -> float:
        return self.half_width / math.sqrt(3)

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Float64[Tensor, "..."]:
        return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * self.half_width


@torch.no_grad()
def mix_noise_into_gradients_(
    parameters: Iterable[nn.Parameter], share: float, noise: GradientNoise, generator: torch.Generator
) -> None:
    """Replace each gradient g by sqrt(share) g + sqrt(1 - share) n, n independent noise of one law in every entry.

    Call it between the backward pass and the step. Cost: one draw for every parameter.
    Reference: Luo 2025, section 4.8.4, with N(0, 1), U[-1/2, 1/2] and no noise.

    Args:
        parameters: Those with a gradient are changed.
        share: rho in [0, 1]; 1 changes nothing.
        noise: `GaussianGradientNoise(1.0)`, `UniformGradientNoise(0.5)`, or another law of mean 0.
        generator: Of the draws, on the CPU: the same noise on every device.
    """
    if not 0 <= share <= 1:
        raise ArgumentError(f"The share of the gradient lies in [0, 1], got {share}.")
    for parameter in parameters:
        if parameter.grad is None:
            continue
        drawn = noise.draw(parameter.grad.shape, generator)
        parameter.grad.mul_(math.sqrt(share)).add_(drawn.to(parameter.grad), alpha=math.sqrt(1 - share))


def corrupt_labels(
    labels: Int[Tensor, "*shape"], classes: int, probability: float, generator: torch.Generator
) -> Int[Tensor, "*shape"]:
    """A copy in which each label is, with a probability, a uniform one of all classes, the old one among them.

    So a label differs from the old one with probability p (1 - 1 / classes). Reference: Luo 2025, section 4.8.5.
    """
    if not 0 <= probability <= 1 or classes < 1:
        raise ArgumentError(
            f"A probability lies in [0, 1] and there is at least one class, got {probability} and {classes}."
        )
    drawn = torch.randint(0, classes, labels.shape, generator=generator).to(labels)
    chosen = torch.rand(labels.shape, generator=generator, dtype=torch.float64) < probability
    return torch.where(chosen.to(labels.device), drawn, labels)


def _check_size(name: str, size: float) -> None:
    if not 0 <= size < math.inf:
        raise ArgumentError(f"{name} of noise is at least 0 and finite, got {size}.")
