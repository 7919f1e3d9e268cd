"""Projections after an optimizer step: weights clipped, or shrunk to a norm."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from lipkit.errors import ArgumentError
from lipkit.norms import Norm
from lipkit.regularizers.linear_layers import LinearLayer
from lipkit.regularizers.weights.parseval import own_weight
from lipkit.regularizers.weights.training_norm import TrainingNorm


@torch.no_grad()
def clip_(model: nn.Module, limit: float = 0.01) -> nn.Module:
    """Every parameter w <- min(max(w, -limit), limit), in place; returns the model.

    Guarantee: afterwards ||W||_2 <= limit (rows cols)^(1/2) and ||W||_inf <= limit cols for each matrix: crude bounds.
    Cost: one pass. Reference: Arjovsky, Chintala, Bottou 2017 (limit 0.01).

    Args:
        limit: Largest absolute value that an entry may have.
    """
    if not 0 < limit < math.inf:
        raise ArgumentError(f"The limit of clipping must be a positive number, got {limit}.")
    for parameter in model.parameters():
        parameter.clamp_(-limit, limit)
    return model


@torch.no_grad()
def shrink_(layers: Sequence[LinearLayer], limit: float = 1.0, norm: Norm | None = None) -> None:
    """Every weight W <- W / max(1, ||W||/limit), in place: what is inside stays as it is, bit for bit.

    `norm` measures, by default `TrainingNorm()`; `norms.Frobenius()` gives the projection on the Frobenius ball, and
    `norms.Mixed` those of other norms. For constrained parametrizations use `lipkit.nn.project` instead.

    Guarantee: with a norm that certifies, ||W|| <= limit up to the rounding of the stored weights (2^-24 relative in
    float32); prove the result with `lipkit.certificate`. With `Power` the norm may stay above the limit.
    Cost: one norm a layer. Reference: Gouk et al. 2021.

    Args:
        layers: From `layers_of`.
        limit: Largest norm that a layer may have.
        norm: Measures the layers; `TrainingNorm()` if None.
    """
    if not 0 < limit < math.inf:
        raise ArgumentError(f"The limit of a norm must be a positive number, got {limit}.")
    weights = [own_weight(layer.name, layer.module) for layer in layers]
    bounds = (TrainingNorm() if norm is None else norm).many([layer.operator() for layer in layers])
    largest: dict[nn.Parameter, float] = {}
    for weight, bound in zip(weights, bounds, strict=True):
        # A kernel used at several sizes is shrunk by the largest of its norms.
        largest[weight] = max(largest.get(weight, 0.0), float(bound.value))
    for weight, value in largest.items():
        if value > limit:
            weight.mul_(limit / value)
