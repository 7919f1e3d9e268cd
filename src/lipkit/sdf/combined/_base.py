"""What all combinations of fields share."""

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property, reduce
from typing import Final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import Field, Readings, constant_of

# Parts that are named in words.
_SHOWN: Final = 4


class Combined(Field):
    """A field made from others by one function of their readings.

    A subclass gives `_parts`, `_bound` and `_combine`; values, errors and gradients follow.
    """

    operands: tuple[Field, ...]

    def __init__(self, *operands: Field) -> None:
        if not operands or not all(isinstance(one, Field) for one in operands):
            names = [type(one).__name__ for one in operands]
            raise ArgumentError(f"{type(self).__name__} is made from one field or more, got {names}.")
        dims = [one.dim for one in operands]
        if len(set(dims)) != 1:
            raise ShapeError(f"Fields that are combined have points of one dimension, got {dims}.")
        self.operands = operands

    def __repr__(self) -> str:
        # The parts by name alone: trees may be deep, and one part may be in them many times.
        shown = [type(one).__name__ for one in self.operands[:_SHOWN]]
        more = len(self.operands) - _SHOWN
        return f"{type(self).__name__}({', '.join(shown)}{f' and {more} more' if more > 0 else ''})"

    @property
    def dim(self) -> int:
        return self.operands[0].dim

    @property
    def bound(self) -> Bound:
        return self._proven

    @cached_property
    def _proven(self) -> Bound:
        for one in self.operands:
            constant_of(one)
        return replace(self._bound(), method=self, subject=None)

    @abstractmethod
    def _bound(self) -> Bound:
        """The constant, from those of the operands."""

    def _at(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        """Where the operands are evaluated."""
        return points

    @abstractmethod
    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        """The values, from those of the operands."""

    @abstractmethod
    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        """Bounds of the errors, from the computed values of the operands and their errors."""

    def _reached(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        at = self._at(points)
        # A point that was finite may not be so where an operand sees it.
        if at is not points and not bool(torch.isfinite(at.detach()).all()):
            raise NonFiniteError(
                f"{type(self).__name__} brings some points beyond the range of float64; are they too far out?"
            )
        return at

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        at = self._reached(points)
        return self._combine(torch.stack([one._values(at) for one in self.operands]))

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        at = self._reached(points)
        found = [one._measure(at) for one in self.operands]
        values, errors = torch.stack([one.value for one in found]), torch.stack([one.error for one in found])
        return Readings(self._combine(values), self._combine_errors(points, values, errors))


def largest(operands: tuple[Field, ...]) -> Bound:
    """The largest constant of some fields; UPPER, for which of them is steepest may never show."""
    if len(operands) == 1:
        return operands[0].bound
    return replace(reduce(Bound.max, [one.bound for one in operands]), kind=Kind.UPPER, lower=None)
