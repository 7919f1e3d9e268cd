"""The largest singular value of a matrix with its second derivative, from the smaller Gram matrix alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import NonFiniteError

# Values closer to the largest than this share of it are one with it: their part of the curvature is left out.
_SAME = 2.0**-26
# The least distance of two values that is told from none, as a share of the larger one.
LEAST_GAP = 2.0**-52


@final
@dataclass(frozen=True, eq=False)
class GramDecomposition:
    """A (rows <= columns after a transposition), A v = value u, and the inverse of value^2 - A A' off u.

    A decomposition of A itself would give the same and more: for a layer of 256 x 2048 it takes many times as long,
    and a profiler runs beside a training.
    """

    matrix: Float64[Tensor, "p q"]
    resolvent: Float64[Tensor, "p p"]
    u: Float64[Tensor, " p"]
    v: Float64[Tensor, " q"]
    value: float
    gap: float
    transposed: bool

    @property
    def left(self) -> Float64[Tensor, " m"]:
        """The left singular vector of the matrix as it was given."""
        return self.v if self.transposed else self.u

    @property
    def right(self) -> Float64[Tensor, " n"]:
        """The right singular vector of the matrix as it was given."""
        return self.u if self.transposed else self.v

    @property
    def amplification(self) -> float:
        """||D^2 sigma_1||: 1 / (sigma_1 - sigma_2), of one row or column 1 / sigma_1, of one entry 0.

        Values that are one to rounding have no second derivative; they count as apart by 2^-52 of the larger one.
        """
        return 0.0 if self.matrix.numel() == 1 else 1 / max(self.gap, LEAST_GAP * self.value)

    def solve(
        self, a: Float64[Tensor, "*b m"], b: Float64[Tensor, "*b n"]
    ) -> tuple[Float64[Tensor, "*b m"], Float64[Tensor, "*b n"]]:
        """(g; h) off (u, v) with sigma g - A h = a and sigma h - A'g = b off (u, v), for any number of pairs at once.

        That is (sigma^2 - A A') g = sigma a + A b and h = (b + A'g) / sigma. Values that repeat the largest are left
        out. Cost: two products with A and one with the resolvent, for each pair.
        """
        if self.transposed:
            a, b = b, a
        g, h = solve_by_gram(self.matrix, (self.u, self.v, self.value), a, b, lambda x: x @ self.resolvent)
        return (h, g) if self.transposed else (g, h)

    def form(self, a: Float64[Tensor, "*b m"], b: Float64[Tensor, "*b n"]) -> Float64[Tensor, "*b"]:
        """D^2 sigma_1[X, X] = <a, g> + <b, h> from a = X v and b = X'u, for any number of X at once."""
        # g and h have no part along u and v, so those of a and b do not count.
        g, h = self.solve(a, b)
        return (a * g).sum(-1) + (b * h).sum(-1)

    def diagonal(self) -> Float64[Tensor, "m n"]:
        """D^2 sigma_1[E, E] for every unit matrix E: a = v_d e_c and b = u_c e_d in `form`, R the resolvent,

            sigma R_cc v_d^2 + 2 u_c v_d (R A)_cd + u_c^2 (1 - v_d^2 + (A'R A)_dd) / sigma.

        Cost: one product of the resolvent with A.
        """
        moved = self.resolvent @ self.matrix
        inner = (self.matrix * moved).sum(0)
        u, v = self.u, self.v
        own = self.value * torch.outer(self.resolvent.diagonal(), v.square())
        other = torch.outer(u.square(), (1 - v.square() + inner) / self.value)
        found = own + 2 * torch.outer(u, v) * moved + other
        return found.mT if self.transposed else found


def decompose_gram(matrix: Float[Tensor, "m n"]) -> GramDecomposition:
    """The largest singular value of a matrix that is finite and not zero.

    Guarantee: ESTIMATE, in float64; the vectors have about 16 digits less those of sigma / gap.
    Cost: one Gram matrix of the smaller side, and its eigenvalues.
    """
    wide, transposed = as_wide(matrix)
    gram = gram_of(wide)
    squares, basis = torch.linalg.eigh(gram)
    distance = squares[-1] - squares
    weights = torch.where(distance > _SAME * squares[-1], 1 / distance, 0.0)
    u = basis[:, -1]
    v = wide.mT @ u
    value = float(torch.linalg.vector_norm(v))
    gap = gap_of(value**2, float(squares[-2:][0]), wide.shape)
    return GramDecomposition(wide, (basis * weights) @ basis.mT, u, v / value, value, gap, transposed)


def solve_by_gram(
    wide: Float64[Tensor, "p q"],
    triplet: tuple[Float64[Tensor, " p"], Float64[Tensor, " q"], float],
    a: Float64[Tensor, "*b p"],
    b: Float64[Tensor, "*b q"],
    resolve: Callable[[Tensor], Tensor],
) -> tuple[Float64[Tensor, "*b p"], Float64[Tensor, "*b q"]]:
    """The solution that `GramDecomposition.solve` promises, for a matrix at least as wide as high.

    `triplet` is u, v and sigma, and `resolve` the inverse of sigma^2 - A A' off u, on rows.
    """
    u, v, value = triplet
    a = a - (a @ u).unsqueeze(-1) * u
    b = b - (b @ v).unsqueeze(-1) * v
    g = resolve(value * a + b @ wide.mT)
    return g, (b + g @ wide) / value


def gram_of(wide: Float64[Tensor, "p q"]) -> Float64[Tensor, "p p"]:
    """A A', if its squares are normal numbers and not all zero."""
    gram = wide @ wide.mT
    if not bool(torch.isfinite(gram).all()) or not bool(gram.diagonal().any()):
        size = float(wide.abs().amax())
        raise NonFiniteError(f"A matrix with entries up to {size:g} squares out of the range of float64; rescale it.")
    return gram


def as_wide(matrix: Float[Tensor, "m n"]) -> tuple[Float64[Tensor, "p q"], bool]:
    """The matrix in float64 with at most as many rows as columns, and whether it was transposed for that."""
    wide = matrix.detach().to(torch.float64)
    transposed = wide.shape[0] > wide.shape[1]
    return wide.mT.contiguous() if transposed else wide, transposed


def gap_of(first: float, second: float, shape: Sequence[int]) -> float:
    """sigma_1 - sigma_2 from their squares; a value's mirror image, or zero beside a square, is no nearer than that.

    Args:
        first: The square of the largest singular value.
        second: The square of the next; of a matrix with one row it is not used.
        shape: Rows and columns, rows <= columns.
    """
    value = math.sqrt(first)
    gap = 2 * value if shape[0] == shape[1] else value
    if shape[0] > 1:
        gap = min(gap, (first - second) / (value + math.sqrt(max(second, 0.0))))
    return max(gap, 0.0)


def spectral_norm_by_gram(matrix: Float[Tensor, "m n"]) -> float:
    """||A||_2 in float64. Guarantee: ESTIMATE. Cost: one Gram matrix of the smaller side, and its eigenvalues."""
    wide, _ = as_wide(matrix)
    return float(torch.linalg.eigvalsh(wide @ wide.mT)[-1].clamp(min=0).sqrt())
