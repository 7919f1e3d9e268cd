"""Decay of all activations and of the last layer's weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True)
class LayerwiseActivation:
    """activations * sum over layers of mean_samples ||h_l||^2 + head * ||W_L||_F^2.

    The activations come from `recording(*modules).outputs`, (batch, ...) each; `weight` is that of the last layer.

    Guarantee: none. Cost: one pass over the activations. Evaluated in float32 at least.
    Reference: Baek, Kolter, Raghunathan 2024; weights 1e-3 and 1e-2 as in Delattre 2025, appendix D.1.2.

    Args:
        activations: Weight of the squared activations.
        head: Weight of the squared entries of the last layer.
    """

    activations: float = 1e-3
    head: float = 1e-2

    def __post_init__(self) -> None:
        for name, value in (("activations", self.activations), ("head", self.head)):
            if not 0 <= value < math.inf:
                raise ArgumentError(f"LayerwiseActivation.{name} must be a finite number >= 0, got {value}.")

    def __call__(
        self, outputs: Sequence[Float[Tensor, "batch ..."]], weight: Float[Tensor, "..."]
    ) -> Float[Tensor, ""]:
        """The penalty for recorded activations and the last layer's weight."""
        total = self.head * _wide(weight).square().sum()
        for h in outputs:
            total = total + self.activations * _wide(h).square().flatten(1).sum(1).mean().to(total.device)
        return total


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
