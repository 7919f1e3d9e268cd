"""Matrices close to a multiple of an isometry: bound the residual instead of the matrix."""

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.norms._base import BlockNorm, Enclosure
from lipkit.norms.gram import Gram
from lipkit.norms.svd import rayleigh, select_blocks
from lipkit.rounding.float64 import gamma, log_up, norm_up, normalize, product_error
from lipkit.rounding.slacks import UNIT


@final
@dataclass(frozen=True)
class NearIsometry(BlockNorm):
    """sigma_1^2 <= s + ||W*W - s I|| with s the mean squared singular value, and `inner` bounding the residual.

    For an isometry up to rounding the residual is tiny, so even a crude bound of it is sharp: relative excess about
    excess(inner) ||W*W - s I|| / (2 s), where Gram iteration alone has rank^(1/p) - 1. On any other matrix it is sound
    but loose.

    Guarantee: UPPER, float64 with all rounding counted. Cost: one Gram product, then `inner` on the smaller side.
    Gradient: of the returned value.
    """

    inner: Gram = field(default_factory=lambda: Gram(steps=2))

    def __str__(self) -> str:
        return f"near-isometry residual by {self.inner}"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        scaled, exponent = normalize(blocks, self)
        flipped = blocks.shape[-1] > blocks.shape[-2]
        tall = scaled.mH if flipped else scaled
        mean, residual = _residual(tall)
        batch, count = residual.shape[:2]
        norms = self.inner.enclose(residual.flatten(0, 1).unsqueeze(1)).log_upper.view(batch, count)
        # The Gram product's own error, and the subtraction's, act on the residual.
        error = 2 * product_error(tall.shape[-2], tall.dtype) * norm_up(tall, 2) ** 2 + 4 * UNIT * mean
        square = (mean + (norms.exp() + error) * (1 + gamma(8))) * (1 + gamma(8))
        value, block = square.max(1)
        ends = select_blocks(residual, block)
        # The residual leans towards the top singular vector; its longest column is a fair start for the lower side.
        longest = torch.linalg.vector_norm(ends, dim=-2).argmax(-1)
        start = ends[torch.arange(batch, device=ends.device), :, longest]
        log_lower, left, right = rayleigh(select_blocks(tall, block), start, exponent)
        if flipped:
            left, right = right, left
        return Enclosure(log_up(value.sqrt() * (1 + gamma(4)), exponent), log_lower, block, left, right)

    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        scaled, _ = normalize(matrices, self)
        tall = scaled.mH if scaled.shape[-1] > scaled.shape[-2] else scaled
        mean, residual = _residual(tall)
        with torch.no_grad():
            inner = self.inner.enclose(residual.detach().unsqueeze(1))
        square = mean + self.inner.attach_gradient(residual, inner).exp()
        log_value = 0.5 * square.clamp(min=1e-300).log()
        return enclosure.log_upper + log_value - log_value.detach()


def _residual(tall: Tensor) -> tuple[Tensor, Tensor]:
    n = tall.shape[-1]
    gram = tall.mH @ tall
    diagonal = torch.diagonal(gram, dim1=-2, dim2=-1)
    mean = (diagonal.real if gram.is_complex() else diagonal).mean(-1)
    identity = torch.eye(n, dtype=tall.dtype, device=tall.device)
    return mean, gram - mean[..., None, None] * identity
