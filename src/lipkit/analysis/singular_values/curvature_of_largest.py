"""The second derivative of the largest singular value of a large matrix, from factors of its smaller Gram matrix."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._seeds import generator, normal
from lipkit.analysis.singular_values.decomposition import SIMPLE, check_matrix, decompose, refuse_repeated
from lipkit.analysis.singular_values.gram_decomposition import (
    GramDecomposition,
    as_wide,
    gap_of,
    gram_of,
    solve_by_gram,
)
from lipkit.analysis.singular_values.singular_value_hessian import SingularValueHessian
from lipkit.linops import Shape

# How far above the largest eigenvalue inverse iteration is shifted, as a share of the distance to the next one: each
# step then gains three digits, and the shift stays far above the rounding of the eigenvalue.
_SHIFT = 1e-3
_STEPS = 8


@final
@dataclass(frozen=True, eq=False)
class _OfLargest(SingularValueHessian):
    """With a = X v, b = X'u: X -> g v' + u h', where sigma g - A h = a and sigma h - A'g = b off (u, v).

    `matrix` has at most as many rows as columns, u and v are its vectors, and `factor` is that of Cholesky of
    sigma^2 (1 + u u') - A A', whose inverse is the one of sigma^2 - A A' off u.
    """

    matrix: Float64[Tensor, "p q"]
    factor: Float64[Tensor, "p p"]
    u: Float64[Tensor, " p"]
    v: Float64[Tensor, " q"]
    value: float
    gap: float
    transposed: bool

    @property
    def in_shape(self) -> Shape:
        rows, columns = self.matrix.shape
        return (columns, rows) if self.transposed else (rows, columns)

    def _apply(self, x: Tensor) -> Tensor:
        g, h, _, _ = self._vectors(x)
        found = g.unsqueeze(-1) * self.v + self.u.unsqueeze(1) * h.unsqueeze(-2)
        return found.mT if self.transposed else found

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)

    def _vectors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.float64)
        wide = wide.mT if self.transposed else wide
        a, b = wide @ self.v, self.u @ wide
        return *solve_by_gram(self.matrix, (self.u, self.v, self.value), a, b, self._resolve), a, b

    def _resolve(self, x: Tensor) -> Tensor:
        found = torch.cholesky_solve(x.reshape(-1, len(self.u)).mT, self.factor).mT.reshape(x.shape)
        # Rounding leaves a part along u, which would grow with the next product.
        return found - (found @ self.u).unsqueeze(-1) * self.u

    def form(self, x: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        # g and h have no part along u and v, so those of a and b do not count.
        g, h, a, b = self._vectors(x)
        return (a * g).sum(-1) + (b * h).sum(-1)

    def triplet(self) -> tuple[float, Float64[Tensor, "..."], Float64[Tensor, "..."]]:
        return (self.value, self.v, self.u) if self.transposed else (self.value, self.u, self.v)

    def trace(self) -> float:
        rows, columns = self.in_shape
        pairs = 2 * self.value * float(self._dense().resolvent.diagonal().sum())
        return pairs + abs(rows - columns) / self.value

    def diagonal(self) -> Float64[Tensor, "..."]:
        return self._dense().diagonal()

    def _dense(self) -> GramDecomposition:
        """With the inverse as a matrix: a product more."""
        resolvent = torch.cholesky_inverse(self.factor) - torch.outer(self.u, self.u) / self.value**2
        return GramDecomposition(self.matrix, resolvent, self.u, self.v, self.value, self.gap, self.transposed)

    def spectrum(self) -> Float64[Tensor, " count"]:
        # Roots of small eigenvalues of a Gram matrix have half of the digits.
        others = torch.linalg.svdvals(self.matrix)[1:]
        rows, columns = self.in_shape
        outside = others.new_full((abs(rows - columns),), 1 / self.value)
        found = torch.cat([1 / (self.value - others), 1 / (self.value + others), outside])
        return found.sort(descending=True).values


def curvature_of_largest(matrix: Float[Tensor, "m n"]) -> SingularValueHessian:
    """D^2 sigma_1, if sigma_1 is apart from the other values by more than 2^-26 of it.

    Eigenvalues alone tell the gap, and inverse iteration finds u: together less than half of the time of all vectors.

    Guarantee: ESTIMATE, in float64; squares of values lose no digits that the gap does not lose as well.
    Cost: the eigenvalues of the smaller Gram matrix and two factors of Cholesky; trace and diagonal are an inverse
    more, the spectrum a decomposition, when it is asked for.
    """
    checked = check_matrix("A", matrix)
    if not bool(checked.any()):
        # Says why a zero has no derivatives.
        decompose(checked, 0)
    wide, transposed = as_wide(checked)
    gram = gram_of(wide)
    squares = torch.linalg.eigvalsh(gram)
    first, second = float(squares[-1]), float(squares[-2]) if len(squares) > 1 else 0.0
    gap = gap_of(first, second, wide.shape)
    if not gap > SIMPLE * first**0.5:
        refuse_repeated(0, first**0.5, gap)
    u = _vector(gram, first, second)
    v = wide.mT @ u
    value = float(torch.linalg.vector_norm(v))
    system = torch.outer(u, u).mul_(value**2).sub_(gram)
    system.diagonal().add_(value**2)
    return _OfLargest(wide, torch.linalg.cholesky(system), u, v / value, value, gap, transposed)


def _vector(gram: Float64[Tensor, "p p"], first: float, second: float) -> Float64[Tensor, " p"]:
    """The eigenvector of the largest eigenvalue, by inverse iteration."""
    shifted = -gram
    shifted.diagonal().add_(first + _SHIFT * (first - second))
    factor = torch.linalg.cholesky(shifted)
    u = normal(gram[:, :1], generator(0))
    for _ in range(_STEPS):
        u = torch.cholesky_solve(u, factor)
        u = u / torch.linalg.vector_norm(u)
    return u[:, 0]
