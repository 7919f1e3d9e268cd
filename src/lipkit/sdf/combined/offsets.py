"""Solids that grow, shrink, or become walls."""

import math
from typing import final

from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.sdf._base import Field
from lipkit.sdf.combined._base import Combined
from lipkit.sdf.given_numbers import as_number


class _Shifted(Combined):
    """A field plus or minus a number."""

    _shift: float

    def _bound(self) -> Bound:
        return self.operands[0].bound

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del points
        return errors[0] + ROUNDINGS_4 * (values[0].abs() + abs(self._shift))


@final
class Offset(_Shifted):
    """A solid that grew by r (shrank, for r < 0): f(x) = a(x) + r.

    Guarantee: the constant of a, of its kind. Cost: that of a.
    """

    def __init__(self, a: Field, r: float) -> None:
        super().__init__(a)
        self.r: float = as_number(r, "r")
        if not abs(self.r) < math.inf:
            raise ArgumentError(f"An offset is finite, got {r}.")
        self._shift = self.r

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return values[0] + self.r


@final
class Shell(_Shifted):
    """A wall of thickness t around the zero set, t/2 on either side: f(x) = t/2 - |a(x)|.

    Guarantee: the constant of a, of its kind. Cost: that of a.
    """

    def __init__(self, a: Field, t: float) -> None:
        super().__init__(a)
        self.t: float = as_number(t, "t")
        if not 0 < self.t < math.inf:
            raise ArgumentError(f"A wall has a finite thickness > 0, got {t}.")
        self._shift = self.t

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return self.t / 2 - values[0].abs()
