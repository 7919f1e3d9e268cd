"""Parseval tightness from products with random vectors: for operators of any padding and stride, never written out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import LinearOperator
from lipkit.regularizers.linear_layers import LinearLayer, sum_over_layers


@final
@dataclass(frozen=True, eq=False)
class StochasticParseval:
    """sum over layers of the mean over `draws` of 1/2 ||x - A'(A x)||^2, x ~ N(0, I), on the smaller side.

    Its expectation is 1/2 ||I - A'A||_F^2 exactly, of the operator itself with its padding and stride; where the input
    is the larger side, A A' takes the place of A'A, which changes the expectation by a constant only.

    Guarantee: none; unbiased, with a relative deviation of about (2/draws)^(1/2) at worst. Cost: `draws` applications
    of A and A'. Random: `generator` makes it reproducible. Evaluated in float32 at least.
    Reference: Béthune 2024, equation 2.23.

    Args:
        draws: Number of random vectors.
        generator: Source of the vectors; torch's global one if None.
    """

    draws: int = 1
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ArgumentError(f"StochasticParseval.draws must be at least 1, got {self.draws}.")

    def __call__(self, layers: Sequence[LinearLayer]) -> Float[Tensor, ""]:
        """One estimate of the penalty at the current weights."""
        return sum_over_layers(self, layers, self.tightness)

    def tightness(self, op: LinearOperator) -> Float[Tensor, ""]:
        """The estimate for one operator. Cost: `draws` applications of it and of its adjoint."""
        weight = op.tensors()[0]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        side = (op if op.in_size <= op.out_size else op.T).to(dtype)
        device = weight.device if self.generator is None else self.generator.device
        x = torch.randn((self.draws, *side.in_shape), dtype=dtype, device=device, generator=self.generator)
        x = x.to(weight.device)
        with torch.autocast(weight.device.type, enabled=False):
            return (x - side.adjoint(side.apply(x))).square().flatten(1).sum(1).mean() / 2
