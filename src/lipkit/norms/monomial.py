"""Operators whose columns are orthogonal: scalings, permutations, copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import NonFiniteError, UnsupportedError
from lipkit.linops import LinearOperator, depth, one_entry_per_row
from lipkit.norms._base import Norm, refuse_state
from lipkit.rounding.float64 import gamma, log_up


@final
@dataclass(frozen=True)
class Monomial(Norm):
    """The norm of an operator with at most one entry in each row: A*A is diagonal, so ||A||^2 = max A* A 1.

    Covers scaling, batch norm in evaluation, indexing, padding, permuting and reshaping, products of these, and their
    adjoints.

    Guarantee: EXACT. Cost: one application of A and A*. Gradient: of the returned value.
    """

    def __str__(self) -> str:
        return "one entry in each row"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        if one_entry_per_row(ops[0]):
            return [self._one(op.to(torch.float64)) for op in ops]
        if one_entry_per_row(ops[0].T):
            return [self._one(op.to(torch.float64).T) for op in ops]
        raise UnsupportedError(
            f"Monomial covers operators with at most one entry in each row or in each column, got {ops[0]}; use Auto."
        )

    def _one(self, op: LinearOperator) -> Bound:
        ones = torch.ones(op.in_shape, dtype=torch.float64, device=op.device)
        largest = op.apply(ones).detach().abs().max()
        if not bool(torch.isfinite(largest)):
            raise NonFiniteError(f"{op} has NaN or infinite weights, so it has no norm; repair the weights first.")
        # Scaled to a largest entry in [1/2, 1) in two exact halves, so that the square neither over- nor underflows.
        exponent = torch.frexp(largest).exponent.to(torch.float64)
        first = torch.floor(exponent / 2)
        powers = (torch.exp2(-first), torch.exp2(first - exponent))
        image = op.apply(ones * powers[0]) * powers[1]
        found = op.adjoint(image * powers[0]) * powers[1]
        square = (found.real if found.is_complex() else found).max()
        # A zero operator has the subgradient zero; the root alone would give NaN.
        safe = torch.where(square > 0, square, 1.0)
        log_value = log_up(safe.sqrt() * (1 + gamma(depth(op) + 16)), exponent)
        return Bound(torch.where(square > 0, log_value, -torch.inf), Kind.EXACT, self)
