"""A guess from Lanczos, proven by a Cholesky factorisation."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, NotProvenError
from lipkit.linops import Dense, stack
from lipkit.norms._base import BlockNorm, Enclosure, positive_int
from lipkit.norms._krylov import Krylov, generator, lanczos, overlap_quantile
from lipkit.norms._rounding import UNIT, gamma, log_up, norm_up, normalised, product_error
from lipkit.norms._vectors import chosen, rayleigh, tied

# The guess only has to be good, never right: a start that misses one time in twenty is fine.
_GUESS_FAILURE = 0.05
_GUESS_SEED = 0
_GUESS_NOISE = 64 * UNIT


@final
@dataclass(frozen=True)
class Cholesky(BlockNorm):
    """Upper bound of the spectral norm within `rtol`: t = (1 + rtol) x the Lanczos value, then a proof that t is enough.

    If t^2 I - W*W = R R* + E, then sigma_1^2 <= t^2 + ||E||_F. R comes from a Cholesky factorisation in float64 (or float32
    where `rtol` allows it), E from multiplying it out again in float64, all rounding counted; so the factorisation itself is
    not trusted. If the factorisation fails, t is raised.

    Guarantee: UPPER and deterministic, whatever Lanczos guessed. Cost: one Gram product, about `steps` matrix-vector
    products, one Cholesky, one triangular product (n^3/3): near-orthogonal or not, which is where Gram iteration suffers.
    Reference: Rump 2006 for the idea; here the residual is computed, not bounded a priori.
    """

    rtol: float = 1e-6
    steps: int = 120

    def __post_init__(self) -> None:
        positive_int("Cholesky.steps", self.steps)
        if not 1e-9 <= self.rtol < 1:
            raise ArgumentError(f"Cholesky.rtol must lie in [1e-9, 1), got {self.rtol}; use SVD for more digits.")

    def __str__(self) -> str:
        return f"Lanczos guess + Cholesky proof, rtol {self.rtol:g}"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        scaled, exponent = normalised(blocks, self)
        flipped = blocks.shape[-1] > blocks.shape[-2]
        tall = scaled.mH if flipped else scaled
        gram = tall.mH @ tall
        gram_error = 2 * product_error(tall.shape[-2], tall.dtype) * (norm_up(tall, 2) ** 2).amax(1)
        theta, likely, block, vector = self._guess(gram)
        square = self._prove(gram, theta, likely) + gram_error
        log_lower, left, right = rayleigh(chosen(tall, block), vector, exponent)
        if flipped:
            left, right = right, left
        log_upper = log_up(square.sqrt() * (1 + gamma(4)), exponent)
        return Enclosure(log_upper, log_lower, block, left, right)

    def attached(self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure) -> Float[Tensor, " batch"]:
        return tied(enclosure.log_upper, stack([Dense(m) for m in matrices]), enclosure.left, enclosure.right)

    def _guess(self, gram: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The largest Ritz value over the blocks, a likely upper bound, the block it comes from, and its vector."""
        batch, blocks, n, _ = gram.shape
        delta = overlap_quantile(n, _GUESS_FAILURE, gram.is_complex())
        flat = gram.flatten(0, 1)

        def sides(krylov: Krylov) -> tuple[Tensor, Tensor, Tensor]:
            theta, vectors = krylov.ritz()
            return theta.view(batch, blocks), krylov.upper(theta, delta, _GUESS_NOISE).view(batch, blocks), vectors

        def done(krylov: Krylov) -> bool:
            theta, likely, _ = sides(krylov)
            return bool((likely.amax(1) <= theta.amax(1) * (1 + 2 * self.rtol)).all())

        draw = torch.randn(n, generator=generator(_GUESS_SEED, gram.device), dtype=torch.float64, device=gram.device)
        start = draw.to(gram.dtype).expand(batch * blocks, n)
        krylov = lanczos(lambda v: (flat @ v.unsqueeze(-1)).squeeze(-1), start, self.steps, _GUESS_NOISE, 8, done)
        theta, likely, vectors = sides(krylov)
        best, block = theta.max(1)
        vector = vectors.view(batch, blocks, n)[torch.arange(batch, device=gram.device), block]
        return best, likely.amax(1), block, vector

    def _prove(self, gram: Tensor, theta: Tensor, likely: Tensor) -> Tensor:
        """For each batch entry a number >= the largest eigenvalue of all its blocks."""
        proven = torch.zeros_like(theta)
        open_ = theta > 0
        # A zero Ritz value may be bad luck: only a zero matrix is proven zero.
        open_ |= gram.abs().flatten(1).amax(1) > 0
        relative = self.rtol
        while bool(open_.any()):
            if relative > 1e6:
                raise NotProvenError("The Cholesky proof failed even at 1000 times the Lanczos value; use SVD instead.")
            todo = open_.nonzero().flatten()
            base = torch.maximum(theta[todo], torch.full_like(theta[todo], 1e-30))
            guess = base * (1 + relative) ** 2
            if relative > self.rtol:
                guess = torch.maximum(guess, likely[todo].clamp(max=4 * base))
            bound = _dominates(gram[todo], guess, self.rtol)
            proven[todo] = torch.where(torch.isfinite(bound), bound, 0.0)
            open_[todo] = ~torch.isfinite(bound)
            relative = 8 * relative
        return proven


def _dominates(gram: Tensor, square: Tensor, rtol: float) -> Tensor:
    """square + ||E|| >= every eigenvalue of every block of `gram`, or inf where the factorisation failed."""
    n = gram.shape[-1]
    identity = torch.eye(n, dtype=gram.dtype, device=gram.device)
    matrix = square[:, None, None, None] * identity - gram
    # The factor's own error is part of E, so single precision does as well where a part in 10^4 is good enough.
    half = torch.complex64 if gram.is_complex() else torch.float32
    working = half if rtol >= 1e-3 else gram.dtype
    factor, info = torch.linalg.cholesky_ex(matrix.to(working))
    factor = factor.to(gram.dtype)
    residual = _residual_norm(matrix, factor)
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1).abs().amax(-1) + square[:, None]
    error = residual + product_error(n, gram.dtype) * norm_up(factor, 2) ** 2 + 4 * UNIT * diagonal
    total = (square[:, None] + error * (1 + gamma(8))).amax(1) * (1 + gamma(8))
    return torch.where((info == 0).all(1) & torch.isfinite(total), total, math.inf)


def _residual_norm(matrix: Tensor, factor: Tensor) -> Tensor:
    """||matrix - factor factor*||_F for Hermitian `matrix` and lower-triangular `factor`, rounded up.

    Block column by block column, using the triangle: a third of the flops of the full product at 8 columns.
    """
    n = matrix.shape[-1]
    width = max(64, math.ceil(n / 8))
    square = torch.zeros(matrix.shape[:-2], dtype=torch.float64, device=matrix.device)
    for i in range(0, n, width):
        j = min(i + width, n)
        column = matrix[..., i:, i:j] - factor[..., i:, :j] @ factor[..., i:j, :j].mH
        here, below = norm_up(column[..., : j - i, :], 2), norm_up(column[..., j - i :, :], 2)
        square = square + here**2 + 2 * below**2
    return square.sqrt() * (1 + gamma(n + 16))
