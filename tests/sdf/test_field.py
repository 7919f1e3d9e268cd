"""The base of fields: what a subclass gets, and which constants it may state."""

from dataclasses import replace
from typing import final

import pytest
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit import sdf
from lipkit.bound import Bound, Kind
from lipkit.errors import KindError, NonFiniteError
from lipkit.regions import Ball
from lipkit.sdf._base import constant_of


@final
class Wave(sdf.Field):
    """sin(2 x) in one dimension, with a bound that the test chooses, and an error of half."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    @property
    def dim(self) -> int:
        return 1

    @property
    def bound(self) -> Bound:
        return self._bound

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return (2 * points[:, 0]).sin() / (points[:, 0] - 7)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return values.abs() / 2


UPPER = Bound.from_value(2.0, Kind.UPPER, "stated")


def test_values_errors_and_gradients_follow() -> None:
    field, x = Wave(UPPER), torch.tensor([[0.5], [1.0]])
    value = torch.sin(2 * x[:, 0].double()) / (x[:, 0].double() - 7)
    assert torch.equal(field(x), value)
    found = field.measure(x)
    assert torch.equal(found.value, value)
    assert torch.equal(found.error, value.abs() / 2)
    at = x[:, 0].double()
    slope = 2 * torch.cos(2 * at) / (at - 7) - torch.sin(2 * at) / (at - 7) ** 2
    # Two formulas of a few roundings each.
    assert torch.allclose(field.gradient(x)[:, 0], slope, rtol=1e-12)


def test_gradients_need_no_grad_mode_and_leave_none_behind() -> None:
    field, x = Wave(UPPER), torch.tensor([[0.5]])
    with torch.no_grad():
        found = field.gradient(x)
    assert float(found.abs()) > 0
    assert not found.requires_grad
    assert x.grad is None
    assert not field.measure(x.requires_grad_()).value.requires_grad


def test_a_value_that_is_not_finite_is_not_measured() -> None:
    with pytest.raises(NonFiniteError, match="Wave"):
        Wave(UPPER).measure(torch.tensor([[0.0], [7.0]]))


def test_the_constant_is_rounded_up() -> None:
    assert 2.0 <= constant_of(Wave(UPPER)) <= 2.0 * (1 + 1e-14)
    assert constant_of(Wave(Bound.from_value(1.0, Kind.EXACT, "stated"))) == 1.0


@pytest.mark.parametrize("kind", [Kind.LOWER, Kind.ESTIMATE])
def test_a_number_that_proves_nothing_is_no_constant(kind: Kind) -> None:
    with pytest.raises(KindError):
        constant_of(Wave(Bound.from_value(1.0, kind, "stated")))


def test_a_constant_of_a_region_is_none_of_a_field() -> None:
    with pytest.raises(KindError, match="everywhere"):
        constant_of(Wave(replace(UPPER, region=Ball(torch.zeros(1), 1.0))))
