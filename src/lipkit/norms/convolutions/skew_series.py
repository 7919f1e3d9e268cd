"""Exponentials of skew convolutions, which are contractions by the polynomial they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import UnsupportedError
from lipkit.linops import Adjoint, ConvExponential, Index, LinearOperator, Padding, Permute, Reshape, factors
from lipkit.linops.conv_exponential import same_padding
from lipkit.linops.queries.rounding_errors import most_copies
from lipkit.norms._base import Norm, refuse_state
from lipkit.norms.convolutions.symbol_grid import SmallGrid
from lipkit.norms.gram import Gram

# The degrees of series that gain nothing on the imaginary axis up to LONGEST_TURN, where both lose a good part.
DEGREES: Final = (8, 12)
LONGEST_TURN: Final = 3.3
# A coarse bound will do: what counts is whether the norm is below LONGEST_TURN.
_NORM = SmallGrid(rtol=0.2, inner=Gram(steps=4))


@final
@dataclass(frozen=True)
class SkewSeries(Norm):
    """1 for sum over j <= m of A^j / j!, where A is a convolution with a skew kernel, ||A|| <= 3.3 and m is 8 or 12.

    A is normal with eigenvalues i t, |t| <= ||A||, and |sum (i t)^j / j!| <= 1 up to |t| = 3.3: it loses
    t^(m + 2) / (m! (m + 2)) to first order. Whether the kernel is skew is seen from its numbers, without any tolerance.
    Permutations, selections and zero padding before and behind count as 1.

    Guarantee: UPPER, for zero and circular padding. Other operators are refused. Cost: the symbol of A on a small
    grid. Gradient: zero, because the bound is constant. The derivation is ours.
    """

    def __str__(self) -> str:
        return "series of a skew kernel"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        for op in ops:
            if not is_skew_series(op):
                raise UnsupportedError(
                    f"SkewSeries covers exponential series of skew convolutions of norm at most {LONGEST_TURN} and "
                    f"degree 8 or 12, with moves and selections around them, got {op}; use Auto."
                )
        return [Bound.from_value(_one(op), Kind.UPPER, self) for op in ops]


def _one(op: LinearOperator) -> Tensor:
    """1, with a gradient of zero to every tensor that wants one."""
    found = torch.ones((), dtype=torch.float64, device=op.device)
    for tensor in op.tensors():
        if tensor.requires_grad:
            found = found + tensor.flatten()[:1].sum().to(found) * 0.0
    return found


def is_skew_series(op: LinearOperator) -> bool:
    """Whether `SkewSeries` covers the operator."""
    parts = [part.inner if isinstance(part, Adjoint) else part for part in factors(op)]
    turns = [part for part in parts if isinstance(part, ConvExponential)]
    if not turns or not all(isinstance(part, ConvExponential) or _keeps_entries(part) for part in parts):
        return False
    return all(is_skew(turn) and _NORM(turn.conv).value.item() <= LONGEST_TURN for turn in turns)


def is_skew(op: ConvExponential) -> bool:
    """Whether the convolution is a skew matrix, and the series one of `DEGREES`."""
    conv = op.conv
    centred = all(k % 2 for k in conv.kernel) and conv.padding == same_padding(conv.kernel, conv.dilation)
    if not centred or conv.mode not in (Padding.ZEROS, Padding.CIRCULAR) or any(s > 1 for s in conv.stride):
        return False
    if op.degree not in DEGREES or conv.weight.is_complex():
        return False
    blocks = conv.weight.detach().unflatten(0, (conv.groups, -1))
    return torch.equal(blocks, -blocks.transpose(1, 2).flip(tuple(range(3, blocks.ndim))))


def _keeps_entries(op: LinearOperator) -> bool:
    """Whether every entry goes to one place at most."""
    return isinstance(op, Permute | Reshape) or (isinstance(op, Index) and most_copies(op) <= 1)
