"""The second derivative of the largest singular value of a large matrix, from its smaller Gram matrix."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.decomposition import SIMPLE, check_matrix, decompose, refuse_repeated
from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition, decompose_gram
from lipkit.analysis.singular_values.singular_value_hessian import SingularValueHessian
from lipkit.linops import Shape


@final
@dataclass(frozen=True, eq=False)
class _OfLargest(SingularValueHessian):
    """With a = X v, b = X'u: X -> g v' + u h', where sigma g - A h = a and sigma h - A'g = b off (u, v)."""

    at: GramDecomposition

    @property
    def in_shape(self) -> Shape:
        return (len(self.at.left), len(self.at.right))

    def _apply(self, x: Tensor) -> Tensor:
        g, h = self.at.solve(*self._seen(x))
        return g.unsqueeze(2) * self.at.right + self.at.left.unsqueeze(1) * h.unsqueeze(1)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.to(torch.float64)
        return wide @ self.at.right, self.at.left @ wide

    def form(self, x: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        return self.at.form(*self._seen(x))

    def triplet(self) -> tuple[float, Float64[Tensor, "..."], Float64[Tensor, "..."]]:
        return self.at.value, self.at.left, self.at.right

    def trace(self) -> float:
        rows, columns = self.in_shape
        pairs = 2 * self.at.value * float(self.at.resolvent.diagonal().sum())
        return pairs + abs(rows - columns) / self.at.value

    def diagonal(self) -> Float64[Tensor, "..."]:
        return self.at.diagonal()

    def spectrum(self) -> Float64[Tensor, " count"]:
        # Roots of small eigenvalues of a Gram matrix have half of the digits.
        others = torch.linalg.svdvals(self.at.matrix)[1:]
        rows, columns = self.in_shape
        outside = others.new_full((abs(rows - columns),), 1 / self.at.value)
        found = torch.cat([1 / (self.at.value - others), 1 / (self.at.value + others), outside])
        return found.sort(descending=True).values


def curvature_of_largest(matrix: Float[Tensor, "m n"]) -> SingularValueHessian:
    """D^2 sigma_1, if sigma_1 is apart from the other values by more than 2^-26 of it.

    Guarantee: ESTIMATE, in float64; squares of values lose no digits that the gap does not lose as well.
    Cost: the eigenvalues of the smaller Gram matrix; the spectrum is one decomposition more, when it is asked for.
    """
    wide = check_matrix("A", matrix)
    if not bool(wide.any()):
        # Says why a zero has no derivatives.
        decompose(wide, 0)
    at = decompose_gram(wide)
    if not at.gap > SIMPLE * at.value:
        refuse_repeated(0, at.value, at.gap)
    return _OfLargest(at)
