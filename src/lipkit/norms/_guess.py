"""Good guesses of the largest eigenvalue of a block-diagonal Gram matrix, for others to prove."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from lipkit.norms._krylov import gaussian, lanczos, overlap_quantile

# A guess may miss: a start that is unlucky one time in a thousand costs a second attempt at the proof.
_FAILURE = 1e-3


@final
@dataclass(frozen=True)
class Guess:
    """A Rayleigh quotient (so from below, up to rounding), the block it comes from, and its vector."""

    value: Float[Tensor, " batch"]
    block: Int[Tensor, " batch"]
    vector: Inexact[Tensor, "batch n"]

    def replaced(self, rows: Int[Tensor, " some"], other: "Guess") -> "Guess":
        """The same with the given rows taken from another guess."""
        pairs = ((self.value, other.value), (self.block, other.block), (self.vector.to(other.vector), other.vector))
        return Guess(*(mine.index_copy(0, rows, theirs) for mine, theirs in pairs))


def by_lanczos(gram: Inexact[Tensor, "batch blocks n n"], steps: int, rtol: float, seed: int) -> Guess:
    """One Lanczos sequence over all blocks, as for the block-diagonal matrix, until it is likely within `rtol`."""
    batch, blocks, n, _ = gram.shape
    flat = gram.flatten(0, 1)
    noise = 64 * torch.finfo(gram.dtype).eps
    delta = overlap_quantile(blocks * n, _FAILURE, gram.is_complex())
    draw = gaussian(seed, (blocks * n,), gram)
    krylov = lanczos(
        lambda v: (flat @ v.reshape(-1, n, 1)).reshape(batch, -1),
        draw.to(gram.dtype).expand(batch, -1),
        steps,
        noise,
        done=lambda k: k.within(rtol, delta, noise),
        record=True,
    )
    return _best(gram, krylov.ritz().reshape(batch, blocks, n))


def by_squaring(gram: Inexact[Tensor, "batch blocks n n"], squarings: int) -> Guess:
    """The longest column of G^(2^squarings), computed in half precision: a few large products, made for tensor cores.

    Complex matrices are squared as real ones of twice the side.
    """
    n = gram.shape[-1]
    parts = torch.view_as_real(gram) if gram.is_complex() else gram.unsqueeze(-1)
    scale = torch.linalg.vector_norm(parts, ord=math.inf, dim=(-3, -2, -1)).clamp(min=1e-300)
    small = (gram / scale[..., None, None]).flatten(0, 1)
    if gram.is_complex():
        re, im = small.real.to(torch.bfloat16), small.imag.to(torch.bfloat16)
        power = torch.cat([torch.cat([re, -im], -1), torch.cat([im, re], -1)], -2)
    else:
        power = small.to(torch.bfloat16)
    for step in range(squarings):
        power = power @ power
        if step % 3 == 1:
            # Back to a largest entry of 1: three squarings raise it to n^7 at most, and bfloat16 ends at 3e38.
            power = power / power.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    power = power[..., :n].float()
    longest = torch.linalg.vector_norm(power, dim=-2).argmax(-1)
    column = power[torch.arange(len(power), device=power.device), :, longest]
    vector = torch.complex(column[:, :n], column[:, n:]) if gram.is_complex() else column
    return _best(gram, vector.to(gram.dtype).view(*gram.shape[:2], n))


def _best(gram: Tensor, vectors: Tensor) -> Guess:
    """The block whose vector has the largest Rayleigh quotient."""
    image = (gram @ vectors.unsqueeze(-1)).squeeze(-1)
    energy, size = (vectors.conj() * image).sum(-1), (vectors.conj() * vectors).sum(-1)
    if gram.is_complex():
        energy, size = energy.real, size.real
    quotient = torch.where(size > 0, energy / torch.where(size > 0, size, 1.0), 0.0).nan_to_num(0.0)
    value, block = quotient.max(1)
    vector = vectors[torch.arange(len(vectors), device=vectors.device), block]
    return Guess(value.to(torch.float64), block, vector)
