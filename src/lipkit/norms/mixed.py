"""Norms from l_p to l_q where a closed form exists, and the interpolation bound between them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric
from lipkit.errors import ArgumentError, NonFiniteError, UnsupportedError
from lipkit.linops import (
    Conv,
    ConvTranspose,
    Dense,
    LinearOperator,
    column_sums,
    depth,
    magnitude,
    materialize,
    row_sums,
)
from lipkit.linops.queries.absolute import taps_meet
from lipkit.norms._base import Norm, dual_exponent, refuse_state
from lipkit.rounding.float64 import gamma, log_up, normalize
from lipkit.rounding.slacks import ROUNDINGS_4, ULP


@final
@dataclass(frozen=True)
class Mixed(Norm):
    """The norm from l_p to l_q, sup ||A x||_q / ||x||_p.

        l1 -> lq    the largest q-norm of a column                          EXACT
        lp -> linf  the largest dual(p)-norm of a row                       EXACT
        lp -> lp    ||A||_1^(1/p) ||A||_inf^(1 - 1/p) (Riesz-Thorin)        UPPER, for p other than 1 and inf

    l1 -> l1 and linf -> linf need only |A| applied once, so any size, and so do l1 -> l2 and l2 -> linf for
    convolutions whose taps do not meet, with squared entries; the other closed forms need the matrix.
    All other pairs are NP-hard or have no such form, and are refused. Gradient: of the returned value.
    """

    p_in: float
    p_out: float

    def __post_init__(self) -> None:
        if not (self.p_in >= 1 and self.p_out >= 1):
            raise ArgumentError(f"Mixed needs exponents in [1, inf], got {self.p_in} and {self.p_out}.")
        if not (self.p_in == 1 or self.p_out == math.inf or self.p_in == self.p_out):
            raise UnsupportedError(
                f"No closed form or bound is known here for {Metric(self.p_in, self.p_out)}; "
                "have p_in = 1, p_out = inf or p_in = p_out."
            )

    def __str__(self) -> str:
        if self.p_in == 1:
            return f"largest {self.p_out:g}-norm of a column"
        if self.p_out == math.inf:
            return f"largest {dual_exponent(self.p_in):g}-norm of a row"
        return "Riesz-Thorin interpolation"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        return [self._one(op.to(torch.float64)) for op in ops]

    def _one(self, op: LinearOperator) -> Bound:
        metric = Metric(self.p_in, self.p_out)
        if self.p_in == 1 and self.p_out == 1:
            return Bound(_largest(column_sums, op), Kind.EXACT, self, metric)
        if self.p_in == math.inf:
            return Bound(_largest(row_sums, op), Kind.EXACT, self, metric)
        if self.p_in == 1:
            return Bound(_largest_norm(op, 0, self.p_out), Kind.EXACT, self, metric)
        if self.p_out == math.inf:
            return Bound(_largest_norm(op, 1, dual_exponent(self.p_in)), Kind.EXACT, self, metric)
        log_columns, log_rows = _largest(column_sums, op), _largest(row_sums, op)
        log_value = log_columns / self.p_in + log_rows * (1 - 1 / self.p_in)
        slack = 4 * ULP * (1 + log_columns.detach().abs() + log_rows.detach().abs())
        log_value = torch.where(torch.isneginf(log_columns), log_columns, log_value + slack)
        return Bound(log_value, Kind.UPPER, self, metric)


def _largest(sums: Callable[[LinearOperator], Tensor], op: LinearOperator) -> Tensor:
    """log of the largest entry of |A| 1 or |A|* 1; all terms are >= 0, so the rounding is relative to the sum."""
    found = sums(op).flatten()
    if not bool(torch.isfinite(found.detach()).all()):
        raise NonFiniteError(f"{op} has NaN or infinite weights, so it has no norm; repair the weights first.")
    value = found.max() * (1 + gamma(depth(op) + max(op.in_size, op.out_size) + 4))
    if not isinstance(op, Dense):
        # Where parts meet in one entry (a product, a sum), its rounding is relative to them, however much cancels.
        # A spectral norm is at most sqrt(size) times these, and the other way round.
        entries, root = magnitude(op), math.sqrt(max(op.in_size, op.out_size))
        error = entries.absolute.to(value) + entries.relative * root * value.detach()
        value = value + gamma(depth(op)) * root * error
    return log_up(value)


def _largest_norm(op: LinearOperator, axis: int, p: float) -> Tensor:
    if p == 2 and (isinstance(op, ConvTranspose) or (isinstance(op, Conv) and not taps_meet(op))):
        return _largest_root(op, axis)
    scaled, exponent = normalize(materialize(op).unsqueeze(0), op)
    matrix, size = scaled[0], scaled.shape[1 + axis]
    # In units of its largest entry every norm is at least 1, so that no power underflows, however large p is.
    unit = matrix.detach().abs().amax(axis, keepdim=True).clamp(min=1e-300)
    found = (torch.linalg.vector_norm(matrix / unit, ord=p, dim=axis) * unit.squeeze(axis)).max()
    # A power and a root of any exponent are within a few roundings a term.
    value = found * (1 + gamma(8 * size + 64))
    if not isinstance(op, Dense):
        # The rounding error of the entries: in any l_p at most sqrt(size) times its Euclidean norm.
        entries = magnitude(op)
        scale = torch.exp2(-exponent[0])
        error = entries.absolute.to(scale) * scale + entries.relative * torch.linalg.vector_norm(matrix.detach())
        value = value + gamma(depth(op)) * math.sqrt(size) * error
    return log_up(value) + exponent[0] * math.log(2) * (1 + ROUNDINGS_4 * torch.sign(exponent[0]))


def _largest_root(op: Conv | ConvTranspose, axis: int) -> Tensor:
    """log of the largest Euclidean norm of a row or column: every entry is a tap, so their squares are sums."""
    scaled, exponent = normalize(op.weight.unsqueeze(0), op)
    sums = (row_sums if axis else column_sums)(replace(op, weight=scaled[0].square()))
    # Squares, a sum of numbers >= 0, and what underflows: far below a rounding of the largest sum.
    value = sums.max() * (1 + gamma(depth(op) + max(op.in_size, op.out_size) + 8))
    alive = value > 0
    root = torch.where(alive, value, 1.0).sqrt() * (1 + gamma(4))
    log = log_up(torch.where(alive, root, 0.0))
    return log + exponent[0] * math.log(2) * (1 + ROUNDINGS_4 * torch.sign(exponent[0]))
