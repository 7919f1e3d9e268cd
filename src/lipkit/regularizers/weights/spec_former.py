"""The largest singular values of attention projections, as SpecFormer penalises them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.linops import Dense
from lipkit.norms import Norm
from lipkit.regularizers.linear_layers import projection_readers
from lipkit.regularizers.weights.training_norm import TrainingNorm


class AttentionProjections(NamedTuple):
    """The weights that make queries, keys and values of one attention layer, (outputs, inputs) each."""

    query: Tensor
    key: Tensor
    value: Tensor


def attention_projections(model: nn.Module) -> tuple[AttentionProjections, ...]:
    """The projections of every nn.MultiheadAttention of a model, live; for other attention make them yourself.

    Call it anew at every step, and after weights were replaced: packed weights are sliced here. Cost: none.
    """
    found = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    if not found:
        raise ArgumentError(
            f"{type(model).__name__} has no nn.MultiheadAttention; give AttentionProjections(query, key, value) for "
            "each layer."
        )
    return tuple(AttentionProjections(**{name: read() for name, read in projection_readers(m).items()}) for m in found)


@final
@dataclass(frozen=True)
class SpecFormer:
    """sum over attention layers of query sigma_1(W_Q)^2 + key sigma_1(W_K)^2 + value sigma_1(W_V)^2.

    The three weights are fields. Gradient: 2 weight sigma_1 u_1 v_1'.

    Guarantee: none; the local constant of attention grows with these norms. Cost: three norms a layer, in one batch.
    Reference: Hu et al. 2024, who take power iteration (`norm=Power(1)`).

    Args:
        query: Weight of the query projections.
        key: Weight of the key projections.
        value: Weight of the value projections.
        norm: Measures the projections.
    """

    query: float = 1e-4
    key: float = 1e-4
    value: float = 1e-4
    norm: Norm = field(default_factory=TrainingNorm)

    def __post_init__(self) -> None:
        for name in ("query", "key", "value"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"SpecFormer.{name} must be a finite number >= 0, got {getattr(self, name)}.")

    def __call__(self, attention: Sequence[AttentionProjections]) -> Float64[Tensor, ""]:
        """The penalty of all layers at the current weights."""
        if not attention:
            raise ArgumentError("SpecFormer got no attention layers; find them with attention_projections(model).")
        weights = [Dense(weight) for layer in attention for weight in layer]
        values = torch.stack([bound.value.to(weights[0].weight.device) for bound in self.norm.many(weights)])
        shares = values.new_tensor([self.query, self.key, self.value]).repeat(len(attention))
        return (shares * values.square()).sum()
