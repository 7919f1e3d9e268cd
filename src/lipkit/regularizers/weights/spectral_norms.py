"""Penalties on the norms of all layers: sums, squares, logarithms, and the hinge at a target."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.norms import Norm
from lipkit.regularizers.linear_layers import LinearLayer, check_layers
from lipkit.regularizers.weights.training_norm import TrainingNorm


@dataclass(frozen=True)
class SpectralPenalty(ABC):
    """A number made from the norms of layers: `penalty(layers_of(model, example))`, to be weighted and added to a loss.

    `norm` measures the layers; any kind of bound may be trained on, and gradients are those of the bound's value. The
    result is a float64 scalar with a graph to the parameters. Layers of one geometry are measured in one batch.
    """

    norm: Norm = field(default_factory=TrainingNorm, kw_only=True)

    @final
    def __call__(self, layers: Sequence[LinearLayer]) -> Float64[Tensor, ""]:
        """The penalty at the current weights."""
        check_layers(self, layers)
        bounds = self.norm.many([layer.operator() for layer in layers])
        first = bounds[0].log_value
        logs = torch.stack([bound.log_value.to(first.device) for bound in bounds])
        values = torch.stack([bound.value.to(first.device) for bound in bounds])
        return self.combine(values, logs)

    @abstractmethod
    def combine(self, values: Float64[Tensor, " layers"], logs: Float64[Tensor, " layers"]) -> Float64[Tensor, ""]:
        """The penalty from the norms of the layers and their logarithms."""


@final
@dataclass(frozen=True)
class NormSum(SpectralPenalty):
    """sum over layers of sigma_1(W): the sum of all spectral norms.

    Guarantee: none about the network; each norm has the kind of its bound. Gradient: u_1 v_1' in each weight.
    Cost: one norm a layer. Reference: Delattre 2025, equation 7.1 (weight 0.1 there).
    """

    def combine(self, values: Float64[Tensor, " layers"], logs: Float64[Tensor, " layers"]) -> Float64[Tensor, ""]:
        return values.sum()


@final
@dataclass(frozen=True)
class SquaredNormSum(SpectralPenalty):
    """1/2 sum over layers of sigma_1(W)^2: spectral norm regularisation, to be weighted by lambda.

    Guarantee: none. Gradient: sigma_1 u_1 v_1'. Cost: one norm a layer; the authors take one step of power iteration,
    here `norm=Power(1)`. Reference: Yoshida and Miyato 2017 (lambda = 0.01).
    """

    def combine(self, values: Float64[Tensor, " layers"], logs: Float64[Tensor, " layers"]) -> Float64[Tensor, ""]:
        return values.square().sum() / 2


@final
@dataclass(frozen=True)
class LogNormSum(SpectralPenalty):
    """sum over layers of log sigma_1(W): the logarithm of the product bound of these layers.

    Guarantee: none; in a chain with 1-Lipschitz activations it is the logarithm of an upper bound of the constant if
    the norm certifies. Gradient: u_1 v_1'/sigma_1. Limits: a layer of norm 0 has no logarithm and is refused.
    Cost: one norm a layer. Reference: Araujo et al. 2021.
    """

    def combine(self, values: Float64[Tensor, " layers"], logs: Float64[Tensor, " layers"]) -> Float64[Tensor, ""]:
        if not bool((logs > -math.inf).all()):
            place = int(logs.detach().argmin())
            raise NonFiniteError(
                f"Layer number {place} has norm 0, whose logarithm is no number; leave it out, or use NormSum."
            )
        return logs.sum()


@final
@dataclass(frozen=True)
class NormHinge(SpectralPenalty):
    """sum over layers of max{sigma_1(W), target}: layers above the target shrink, those below are left alone.

    Guarantee: none while training; what the norms are afterwards is for `lipkit.certificate` to say. Gradient: u_1 v_1'
    above the target, exactly 0 below. Cost: one norm a layer.
    Reference: Delattre 2025, equation 4.1 (target 1, weight 0.1).

    Args:
        target: Norm up to which a layer is left alone.
    """

    target: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.target < math.inf:
            raise ArgumentError(f"NormHinge.target must be a positive number, got {self.target}.")

    def combine(self, values: Float64[Tensor, " layers"], logs: Float64[Tensor, " layers"]) -> Float64[Tensor, ""]:
        return values.clamp(min=self.target).sum()
