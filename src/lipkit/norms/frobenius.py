"""The Frobenius norm as an upper bound of the spectral norm."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.norms._base import BlockNorm, Enclosure
from lipkit.norms.svd import rayleigh, select_blocks
from lipkit.rounding.float64 import log_up, norm_up, normalize


@final
@dataclass(frozen=True)
class Frobenius(BlockNorm):
    """||A|| <= ||A||_F = (sum_ij |a_ij|^2)^(1/2), equal exactly when the rank is one.

    Guarantee: UPPER, at most sqrt(rank) too large. Cost: one pass over the entries. Gradient: of the returned value.
    """

    def __str__(self) -> str:
        return "Frobenius norm"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        scaled, exponent = normalize(blocks, self)
        value, block = norm_up(scaled, 2).max(1)
        matrices = select_blocks(scaled, block)
        longest = torch.linalg.vector_norm(matrices, dim=-1).argmax(-1)
        start = matrices[torch.arange(len(matrices), device=matrices.device), longest].conj()
        log_lower, left, right = rayleigh(matrices, start, exponent)
        return Enclosure(log_up(value, exponent), log_lower, block, left, right)

    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        scaled, _ = normalize(matrices, self)
        # The tiny floor keeps the gradient of a zero matrix at zero instead of NaN; it changes no value.
        square = (scaled.abs() ** 2).sum((-2, -1)).clamp(min=1e-300)
        return enclosure.log_upper + 0.5 * (square.log() - square.log().detach())
