"""Fields from formulas, whose constants these tests know."""

from collections.abc import Callable
from typing import final

import pytest
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.sdf import Field

Formula = Callable[[Tensor], Tensor]


@final
class FormulaField(Field):
    """A formula with a stated constant; it is taken to be evaluated within eight roundings of its value and of one."""

    def __init__(self, formula: Formula, dim: int, constant: float, kind: Kind = Kind.UPPER) -> None:
        self.formula, self.size, self.constant, self.kind = formula, dim, constant, kind

    @property
    def dim(self) -> int:
        return self.size

    @property
    def bound(self) -> Bound:
        return Bound.from_value(self.constant, self.kind, "stated")

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self.formula(points)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return 2.0**-50 * (values.abs() + 1)


@pytest.fixture(scope="session")
def field_of() -> type[FormulaField]:
    """FormulaField(formula, dim, constant)."""
    return FormulaField
