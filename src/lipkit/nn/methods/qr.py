"""Orthogonal matrices by orthogonalising one column after another."""

import enum
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.precision import widest
from lipkit.nn.methods._arithmetic.safe_scaling import divide_by_largest
from lipkit.nn.methods._isometry import IsometryMethod

# Singular values below this part of the size of the matrix count as zero.
_RIDGE = {torch.float32: 2.0**-22, torch.float64: 2.0**-40}


class QRFactorization(enum.Enum):
    """The algorithm for the triangular factor."""

    # LAPACK's QR: as stable as can be.
    HOUSEHOLDER = "Householder"
    # Column by column; loses orthogonality in proportion to the condition. The reference for the other two.
    GRAM_SCHMIDT = "modified Gram-Schmidt"
    # Twice through the Cholesky factor of the Gram matrix, in float64: only products and triangular solves.
    CHOLESKY = "Cholesky, twice"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class QR(IsometryMethod):
    """The orthogonal factor of W = Q R, R triangular with positive diagonal: Gram-Schmidt on the columns.

    Factored is [W / s; d I] with s = ||W||_F and d = 2^-22 (2^-40 for float64, except by Cholesky), which has full rank
    whatever W is; the weight is the upper part of its orthogonal factor, with singular values
        s_i / (s_i^2 + d^2)^(1/2)
    for those s_i of W / s, before the closing step. So it is an isometry to 1e-6 as long as s_i > 1e-5; and where W is
    singular the missing directions come out short instead of undefined, with gradients of at most 1 / (d s). Wide
    matrices are orthogonalised by rows.

    Guarantee: norm at most 1 as stored. Reaches every isometry, which is its own free matrix. Cost: 2 (rows + cols)
    cols^2; Gram-Schmidt has one step for each column, in Python. Gradient: of the factorisation.
    Reference: Gram-Schmidt in any textbook; Cholesky twice: Yamamoto et al. 2015.

    Args:
        by: Algorithm of the factorisation.
    """

    scale_free = True
    takes_complex = True

    may_fall_short: ClassVar[bool] = True

    by: QRFactorization = QRFactorization.HOUSEHOLDER

    def __str__(self) -> str:
        return f"QR by {self.by}"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        if self.by is QRFactorization.CHOLESKY:
            wide = _divide_by_frobenius(tall.to(widest(tall.dtype)))
            return _by_cholesky(_by_cholesky(wide))
        scaled = _divide_by_frobenius(tall)
        identity = torch.eye(tall.shape[-1], dtype=tall.dtype, device=tall.device).expand(len(tall), -1, -1)
        full = torch.cat([scaled, _RIDGE[tall.real.dtype] * identity], -2)
        orthogonal = _by_householder(full) if self.by is QRFactorization.HOUSEHOLDER else _by_gram_schmidt(full)
        return orthogonal[:, : tall.shape[-2]]


def _divide_by_frobenius(tall: Tensor) -> Tensor:
    """W / ||W||_F."""
    scaled = divide_by_largest(tall)
    return scaled / torch.linalg.vector_norm(scaled, dim=(-2, -1), keepdim=True).clamp(min=1.0)


def _by_householder(full: Tensor) -> Tensor:
    orthogonal, triangular = torch.linalg.qr(full)
    # LAPACK leaves the signs of the diagonal open, of complex matrices too: their diagonal is real.
    diagonal = torch.diagonal(triangular.detach(), dim1=-2, dim2=-1).real
    return orthogonal * torch.where(diagonal < 0, -1.0, 1.0).to(full.dtype)[:, None, :]


def _by_gram_schmidt(full: Tensor) -> Tensor:
    found: list[Tensor] = []
    rest = full
    for _ in range(full.shape[-1]):
        # The ridge keeps every column away from zero.
        column = rest[..., :1]
        column = column / torch.linalg.vector_norm(column, dim=-2, keepdim=True)
        found.append(column)
        rest = rest[..., 1:]
        rest = rest - column @ (column.mH @ rest)
    return torch.cat(found, -1)


def _by_cholesky(tall: Tensor) -> Tensor:
    identity = torch.eye(tall.shape[-1], dtype=tall.dtype, device=tall.device)
    lower, _ = torch.linalg.cholesky_ex(tall.mH @ tall + _RIDGE[torch.float32] ** 2 * identity)
    return torch.linalg.solve_triangular(lower.mH, tall, upper=True, left=False)
