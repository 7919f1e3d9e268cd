"""What methods for isometries have in common: the tall side up, and a last step that rounding cannot defeat."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._rounding import stored


class IsometryMethod(MatrixMethod):
    """A method that computes a near-isometry with at least as many rows as columns; wide ones are transposed."""

    # Whether some free matrices give singular values well below one: what proves the norm of isometries is loose then.
    may_fall_short: ClassVar[bool] = False

    @abstractmethod
    def isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        """W with W'W = I, up to what the arithmetic of the dtype makes of it."""

    def inverse_isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        """Free numbers of an isometry."""
        return tall

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if raw.shape[-2] < raw.shape[-1]:
            return closed(self.isometry(raw.mT), raw.dtype, self.may_fall_short).mT
        return closed(self.isometry(raw), raw.dtype, self.may_fall_short)

    def inverse_matrix(self, weight: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if weight.shape[-2] < weight.shape[-1]:
            return self.inverse_isometry(weight.mT).mT
        return self.inverse_isometry(weight)


def closed(
    tall: Float[Tensor, "batch rows cols"], dtype: torch.dtype, may_fall_short: bool
) -> Float[Tensor, "batch rows cols"]:
    """A near-isometry made one in float64 and stored in `dtype` with norm at most 1, whatever it was before.

    One Björck step, 3/2 W - 1/2 W (W'W), takes singular values s in [0, 3^(1/2)] to 3/2 s - 1/2 s^3 in [0, 1], and
    1 - e to 1 - 3/2 e^2: what float32 did before is squared away. The Gram matrix that it needs anyway proves s^2 <= 3
    by its largest row sum, or by the Schatten norm ||(W'W)^4||_F^(1/4) where not all s are near 1; a matrix for which
    it does not (a factorisation that failed) is divided by it first.
    """
    wide = tall.to(torch.float64)
    gram = wide.mT @ wide
    fixed = gram.detach()
    square = fixed.abs().sum(-1).amax(-1)
    if may_fall_short:
        eighth = torch.linalg.matrix_power(fixed, 4)
        square = torch.minimum(square, torch.linalg.vector_norm(eighth, dim=(-2, -1)) ** 0.25)
    # Below the 3 of the argument by more than any rounding of the bound.
    excess = torch.where(square > 2.9, square, 1.0)[:, None, None]
    return _rounded(torch.baddbmm(wide, wide, gram / excess, beta=1.5, alpha=-0.5) / excess.sqrt(), dtype)


def finished(tall: Float[Tensor, "batch rows cols"], dtype: torch.dtype) -> Float[Tensor, "batch rows cols"]:
    """`closed` for a matrix whose norm is known to be below 3^(1/2): the last step of an iteration."""
    wide = tall.to(torch.float64)
    return _rounded(torch.baddbmm(wide, wide, wide.mT @ wide, beta=1.5, alpha=-0.5), dtype)


def _rounded(step: Float[Tensor, "batch rows cols"], dtype: torch.dtype) -> Float[Tensor, "batch rows cols"]:
    rows, cols = step.shape[-2:]
    # The rounding of the two products: at most 3 cols (gamma_rows + gamma_cols) in norm, for s^2 <= 3.
    return stored(step * (1 - 4 * cols * (rows + cols + 8) * 2.0**-53), dtype)
