"""How long the rows of an operator are: what one output can move while the input moves by one."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import StatedRounding
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Dense, Diagonal, Index, Permute, Reshape
from lipkit.linops.pool import AvgPool
from lipkit.linops.queries.absolute import dominating, one_entry_per_row, taps_meet
from lipkit.linops.queries.rounding_errors import depth
from lipkit.rounding.float64 import round_up, vector_norms
from lipkit.rounding.slacks import ULP

# Up to this many entries the rows of an operator without structure are formed, a few at a time.
_FORMED = 2**25
_CHUNK_ENTRIES = 2**22
# Squares below the normal range lose at most this much of a row's norm, for each square root of its length.
_UNDERFLOW = 2e-154


def row_norms(op: LinearOperator, q: float) -> Float64[Tensor, "..."]:
    """An upper bound of (sum_j |A_ij|^q)^(1/q) for every output i, q in [1, inf], in float64 and rounded up.

    Up to rounding equal where no parts meet (q = 1, 2) or where the matrix has at most 2^25 entries; for larger ones
    the l1 norm of |A| as bounded by `dominating` for q < 2, and the l2 norm or that for q >= 2. No gradient.
    Cost: one application, or one adjoint for each output where the rows must be formed.
    """
    if not q >= 1:
        raise ArgumentError(f"A norm exponent lies in [1, inf], got {q}.")
    with torch.no_grad():
        return _row_norms(op.to(torch.float64), q)


def _row_norms(op: LinearOperator, q: float) -> Tensor:
    if q == 1 and _powers(op, 1) is not None:
        return _by_powers(op, 1)
    if q == 2 and _powers(op, 2) is not None:
        return _by_powers(op, 2)
    if op.in_size * op.out_size <= _FORMED or isinstance(op, Dense):
        return _from_matrix(op, q)
    if q >= 2 and _powers(op, 2) is not None:
        return _by_powers(op, 2)
    # All l_q norms are below the l1 norm.
    bound = dominating(op)
    return round_up(bound.apply(torch.ones(op.in_shape, dtype=torch.float64, device=op.device)), 2 * depth(op) + 8)


def _by_powers(op: LinearOperator, q: int) -> Tensor:
    powers = _powers(op, q)
    assert powers is not None
    sums = powers.apply(torch.ones(op.in_shape, dtype=torch.float64, device=op.device)).clamp(min=0)
    # Every entry is a product of powers: its own roundings twice over, then those of the sum.
    found = round_up(sums.sqrt() if q == 2 else sums, 4 * depth(op) + 32)
    return found + _UNDERFLOW * math.sqrt(op.in_size)


def _from_matrix(op: LinearOperator, q: float) -> Tensor:
    """Rows by the adjoint, chunk by chunk; rounding of the entries relative to the parts without signs."""
    step = max(1, _CHUNK_ENTRIES // max(op.in_size, op.out_size))
    found: list[Tensor] = []
    for at in range(0, op.out_size, step):
        count = min(step, op.out_size - at)
        if isinstance(op, Dense):
            rows = op.weight[at : at + count]
        else:
            units = torch.zeros(count, op.out_size, dtype=torch.float64, device=op.device)
            units[torch.arange(count), torch.arange(at, at + count)] = 1
            rows = op.adjoint(units.reshape(count, *op.out_shape)).reshape(count, op.in_size)
        found.append(vector_norms(rows, q))
    norms = torch.cat(found).reshape(op.out_shape)
    if isinstance(op, Dense):
        return norms
    sums = dominating(op).apply(torch.ones(op.in_shape, dtype=torch.float64, device=op.device))
    return norms + round_up(ULP * (depth(op) + 2) * sums, 8)


def _powers(op: LinearOperator, q: int) -> LinearOperator | None:
    """The operator with the entries |A_ij|^q, q = 1 or 2; None where parts meet or nothing is known."""
    match op:
        case Dense() | ConvTranspose():
            return replace(op, weight=op.weight.abs() ** q)
        case Conv():
            return None if taps_meet(op) else replace(op, weight=op.weight.abs() ** q)
        case CircularConv():
            return _powers(op.conv, q)
        case Diagonal():
            return replace(op, scale=op.scale.abs() ** q)
        case BatchNorm():
            return _powers(op.diagonal, q)
        case AvgPool():
            return op * float(abs(op.divisor)) ** -q * float(op.divisor)
        case Index() | Permute() | Reshape():
            return op
        case Scaled(factor, inner):
            powers = _powers(inner, q)
            return None if powers is None else Scaled(factor.abs() ** q, powers)
        case StatedRounding(inner):
            return _powers(inner, q)
        case Adjoint(inner):
            powers = _powers(inner, q)
            return None if powers is None else powers.T
        case Compose(outer, inner) if one_entry_per_row(outer) or one_entry_per_row(inner.T):
            left, right = _powers(outer, q), _powers(inner, q)
            return None if left is None or right is None else left @ right
        case _:
            return None
