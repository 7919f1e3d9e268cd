"""Gradients and labels with noise, to see what the laws predict: both changes are one call in a training loop."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lipkit.errors import ArgumentError


@torch.no_grad()
def mix_noise_into_gradients_(
    parameters: Iterable[nn.Parameter], share: float, deviation: float, generator: torch.Generator
) -> None:
    """Replace each gradient g by sqrt(share) g + sqrt(1 - share) n, n Gaussian of one deviation in every entry.

    Call it between the backward pass and the step. A deviation of 0 only scales. Cost: one draw for every parameter.
    Reference: Luo 2025, section 4.8.4; its scale of the noise is not stated, so it is an argument here.

    Args:
        parameters: Those with a gradient are changed.
        share: rho in [0, 1]; 1 changes nothing.
        deviation: Of the noise.
        generator: Of the draws, on the CPU: the same noise on every device.
    """
    if not 0 <= share <= 1 or not 0 <= deviation < math.inf:
        raise ArgumentError(
            f"The share of the gradient lies in [0, 1], the deviation is at least 0, got {share} and {deviation}."
        )
    for parameter in parameters:
        if parameter.grad is None:
            continue
        noise = torch.randn(parameter.grad.shape, generator=generator, dtype=torch.float64) * deviation
        parameter.grad.mul_(math.sqrt(share)).add_(noise.to(parameter.grad), alpha=math.sqrt(1 - share))


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
