"""A guess from Lanczos, proven by a Cholesky factorisation."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from lipkit._runtime import refuse_late, refuse_long
from lipkit.errors import ArgumentError, NotProvenError
from lipkit.linops import Dense, stack
from lipkit.norms._base import BlockNorm, Enclosure, positive_int
from lipkit.norms.matrix_free.krylov import gaussian, lanczos, overlap_quantile
from lipkit.norms.svd import rayleigh, select_blocks, tie_gradient
from lipkit.rounding.float64 import gamma, log_up, norm_up, normalize, product_error
from lipkit.rounding.slacks import UNIT

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
        done=lambda k: refuse_late() or k.within(rtol, delta, noise),
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


@final
@dataclass(frozen=True)
class Cholesky(BlockNorm):
    """Upper bound of the spectral norm within `rtol`: t = (1 + rtol) x the Lanczos value, then a proof that t is
    enough.

    If t^2 I - W*W = R R* + E, then sigma_1^2 <= t^2 + ||E||_F. R comes from a Cholesky factorisation in float64 (or
    float32 where `rtol` allows it), E from multiplying it out again in float64, all rounding counted; so the
    factorisation itself is not trusted. If the factorisation fails, t is raised.

    Guarantee: UPPER and deterministic, whatever Lanczos guessed. Cost: one Gram product, about `steps` matrix-vector
    products, one Cholesky, one triangular product (n^3/3): near-orthogonal or not, which is where Gram iteration
    suffers.
    Reference: Rump 2006 for the idea; here the residual is computed, not bounded a priori.
    """

    rtol: float = 1e-6
    steps: int = 300

    def __post_init__(self) -> None:
        positive_int("Cholesky.steps", self.steps)
        if not 1e-9 <= self.rtol < 1:
            raise ArgumentError(f"Cholesky.rtol must lie in [1e-9, 1), got {self.rtol}; use SVD for more digits.")

    def __str__(self) -> str:
        return f"Lanczos guess + Cholesky proof, rtol {self.rtol:g}"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        # The Gram product, the factor, and the factor multiplied out; a complex product is four real ones.
        n, count = min(blocks.shape[-2:]), math.prod(blocks.shape[:2])
        refuse_long(count * (max(blocks.shape[-2:]) * n**2 + n**3) * (4 if blocks.is_complex() else 1), blocks.device)
        scaled, exponent = normalize(blocks, self)
        flipped = blocks.shape[-1] > blocks.shape[-2]
        tall = scaled.mH if flipped else scaled
        gram = tall.mH @ tall
        gram_error = 2 * product_error(tall.shape[-2], tall.dtype) * (norm_up(scaled, 2) ** 2).amax(1)
        proven, guess = self._prove(gram, self._guess(gram))
        square, block = proven + gram_error, guess.block
        log_lower, left, right = rayleigh(select_blocks(tall, block), guess.vector.to(gram.dtype), exponent)
        if flipped:
            left, right = right, left
        log_upper = log_up(square.sqrt() * (1 + gamma(4)), exponent)
        return Enclosure(log_upper, log_lower, block, left, right)

    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        return tie_gradient(enclosure.log_upper, stack([Dense(m) for m in matrices]), enclosure.left, enclosure.right)

    def _guess(self, gram: Tensor) -> Guess:
        working = _working(gram.dtype, self.rtol)
        if gram.is_cuda and working != gram.dtype:
            # Few large products instead of many small ones: an accelerator waits for launches, not for arithmetic.
            return by_squaring(gram, squarings=5)
        return by_lanczos(gram.to(working), self.steps, 2 * self.rtol, seed=0)

    def _prove(self, gram: Tensor, guess: Guess) -> tuple[Tensor, Guess]:
        """For each batch entry a number >= the largest eigenvalue of all its blocks, and the guess that led there."""
        largest = torch.linalg.vector_norm(torch.diagonal(gram, dim1=-2, dim2=-1), ord=math.inf, dim=(-2, -1))
        # The largest diagonal entry is a Rayleigh quotient too; where it is zero the matrix is, and any t > 0 will do.
        base = torch.where(largest > 0, torch.maximum(guess.value, largest), 1.0)
        proven = _dominates(gram, base * (1 + self.rtol) ** 2, self.rtol)
        relative = self.rtol
        # Only now wait for the device: so far everything was queued, and usually this was all.
        while len(todo := torch.isinf(proven).nonzero().flatten()):
            if not relative < 1e6:
                raise NotProvenError("The Cholesky proof failed even far above the Lanczos value; use SVD instead.")
            refuse_late()
            if relative == self.rtol:
                # The guess was bad luck, or stopped too soon: look longer, from another start, before giving way.
                guess = guess.replaced(todo, by_lanczos(gram[todo], 4 * self.steps, self.rtol / 4, seed=1))
                base = torch.maximum(base, guess.value)
            proven[todo] = _dominates(gram[todo], base[todo] * (1 + relative) ** 2, self.rtol)
            relative = 2 * relative
        return torch.where(largest > 0, proven, 0.0), guess


def _dominates(gram: Tensor, square: Tensor, rtol: float) -> Tensor:
    """square + ||E|| >= every eigenvalue of every block of `gram`, or inf where the factorisation failed."""
    n = gram.shape[-1]
    matrix = -gram
    torch.diagonal(matrix, dim1=-2, dim2=-1).add_(square[:, None, None])
    # The factor's own error is part of E, so the working precision is a matter of speed, not of soundness.
    factor, info = torch.linalg.cholesky_ex(matrix.to(_working(gram.dtype, rtol)))
    factor = factor.to(gram.dtype)
    residual = _residual_norm(matrix, factor)
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1).abs().amax(-1) + square[:, None]
    error = residual + product_error(n, gram.dtype) * norm_up(factor, 2) ** 2 + 4 * UNIT * diagonal
    total = (square[:, None] + error * (1 + gamma(8))).amax(1) * (1 + gamma(8))
    return torch.where((info == 0).all(1) & torch.isfinite(total), total, math.inf)


def _working(dtype: torch.dtype, rtol: float) -> torch.dtype:
    """Single precision where the accuracy asked for leaves room for it."""
    if rtol < 1e-3:
        return dtype
    return torch.complex64 if dtype.is_complex else torch.float32


def _residual_norm(matrix: Tensor, factor: Tensor) -> Tensor:
    """||matrix - factor factor*||_F for Hermitian `matrix` and lower-triangular `factor`, rounded up.

    Block column by block column, using the triangle: a third of the flops of the full product at 8 columns.
    """
    n = matrix.shape[-1]
    width = max(128, math.ceil(n / 8))
    square = torch.zeros(matrix.shape[:-2], dtype=torch.float64, device=matrix.device)
    for i in range(0, n, width):
        j = min(i + width, n)
        column = matrix[..., i:, i:j] - factor[..., i:, :j] @ factor[..., i:j, :j].mH
        here, below = norm_up(column[..., : j - i, :], 2), norm_up(column[..., j - i :, :], 2)
        square = square + here**2 + 2 * below**2
    return square.sqrt() * (1 + gamma(n + 16))
