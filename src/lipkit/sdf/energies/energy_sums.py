"""Sums and differences of fields, with their constants: the energies of products and quotients of densities."""

from typing import final

from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_32, UNIT
from lipkit.sdf._base import Field
from lipkit.sdf.combined._base import Combined


@final
class SignedSum(Combined):
    """a + s b with s = 1 or -1. Guarantee: constant K_a + K_b, an upper bound, which is attained by a = s b."""

    def __init__(self, a: Field, b: Field, sign: float) -> None:
        super().__init__(a, b)
        if sign not in (1.0, -1.0):
            raise ArgumentError(f"The sign of a sum is 1 or -1, got {sign}.")
        self.sign: float = sign

    def _bound(self) -> Bound:
        a, b = self.operands
        return a.bound.sum(b.bound)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return values[0] + self.sign * values[1]

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del points
        return (1 + ROUNDINGS_32) * (errors.sum(0) + UNIT * self._combine(values).abs())
