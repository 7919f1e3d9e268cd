"""The quickest proven bound of a spectral norm: sums of absolute values, whatever the operator is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import NonFiniteError
from lipkit.linops import LinearOperator, depth
from lipkit.linops.queries.absolute import dominating
from lipkit.linops.queries.matrix_forms import bare_matrix
from lipkit.norms._base import Norm, refuse_state
from lipkit.rounding.float64 import gamma, log_up
from lipkit.rounding.slacks import ULP

# Rows of a matrix that are copied to float64 together: some megabytes, which memory is reused for.
_ENTRIES = 2**20


@final
@dataclass(frozen=True)
class AbsoluteSums(Norm):
    """||A|| <= (||D||_1 ||D||_inf)^(1/2), the largest column sum and the largest row sum of D >= |A| entrywise.

    D is made of the absolute values of the parts of A: |B C| <= |B| |C| and |B + C| <= |B| + |C|. So nothing is written
    out, and of a product it is a looser bound than `Mixed(2, 2)`, which forms |A| itself.

    Guarantee: UPPER. Gradient: of the returned value. Cost: one application of D and one of its adjoint, and of a
    matrix one pass over its entries, so that it is affordable where no other norm is; of a callable one adjoint for
    each output.
    Reference: Schur's test.
    """

    answers_late: ClassVar[bool] = True

    def __str__(self) -> str:
        return "sums of absolute values"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        return [Bound(_log_norm(op), Kind.UPPER, self) for op in ops]


def _log_norm(op: LinearOperator) -> Float64[Tensor, ""]:
    matrix = bare_matrix(op)
    if matrix is None or matrix.is_complex():
        # Only the entries count here, not how an application rounds.
        bound = dominating(op.to(torch.float64), 1)
        rows, columns = (
            side.apply(torch.ones(side.in_shape, dtype=torch.float64, device=op.device)).flatten().max()
            for side in (bound, bound.T)
        )
    else:
        rows, columns = _largest_sums(matrix)
    if not bool(torch.isfinite(torch.stack([rows, columns]).detach()).all()):
        raise NonFiniteError(f"{op} has NaN or infinite weights, so it has no norm; repair the weights first.")
    # All terms are >= 0, so the rounding of a sum is relative to it.
    slack = 1 + gamma(4 * (depth(op) + op.in_size + op.out_size) + 32)
    log_rows, log_columns = log_up(rows * slack), log_up(columns * slack)
    middle = 0.5 * (log_rows + log_columns)
    rounded = middle + 4 * ULP * (1 + log_rows.detach().abs() + log_columns.detach().abs())
    return torch.where(torch.isneginf(middle), middle, rounded)


def _largest_sums(matrix: Float[Tensor, "rows cols"]) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""]]:
    """The largest sum of a row and of a column of absolute values, live in the matrix."""
    with torch.no_grad():
        columns = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
        sums: list[Tensor] = []
        for part in matrix.split(max(1, _ENTRIES // matrix.shape[1])):
            size = part.to(torch.float64, copy=True).abs_()
            sums.append(size.sum(1))
            columns += size.sum(0)
        row, column = torch.cat(sums).argmax(), columns.argmax()
    # The two that are largest again, with their gradient: a copy of the whole would be kept for it.
    return matrix[row].to(torch.float64).abs().sum(), matrix[:, column].to(torch.float64).abs().sum()
