"""Functions with a stated constant: what is trusted, and what is refused."""

from typing import Any

import mpmath
import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


def within_errors(field: sdf.Field, x: torch.Tensor, center: int) -> bool:
    """Whether the distance to a center on the first axis, minus the center's, is within the error at all points."""
    found = field.measure(x)
    with mpmath.workdps(50):
        for row, value, error in zip(x.tolist(), found.value.tolist(), found.error.tolist(), strict=True):
            truth = mpmath.sqrt((mpmath.mpf(row[0]) - center) ** 2 + mpmath.mpf(row[1]) ** 2) - 1
            if abs(value - truth) > error:
                return False
    return True


def test_the_default_error_covers_cancellation() -> None:
    # The unit circle around (3, 0), at points on it: values of 1e-16 come from numbers of size one.
    angle = torch.linspace(0, 6, 50, dtype=torch.float64)
    x = torch.stack([3 + angle.cos(), angle.sin()], 1)
    field = sdf.Function(lambda x: torch.hypot(x[:, 0] - 3, x[:, 1]) - 1, 2, 1.0)
    assert within_errors(field, x, 3)
    # A relative error of the values alone would not do.
    bare = field.measure(x)
    assert float(bare.value.abs().min()) * 1e-3 < float(bare.error.min()) < 1e-11


def test_larger_numbers_on_the_way_have_to_be_stated() -> None:
    # Numbers of size 1e6 cancel on the way to values of size one, at points and with f(0) of size one.
    def call(x: torch.Tensor) -> torch.Tensor:
        return (torch.hypot(x[:, 0] - 3, x[:, 1]) + 1e6) - 1000001

    angle = torch.linspace(0, 6, 50, dtype=torch.float64)
    x = torch.stack([3 + 1.1 * angle.cos(), 1.1 * angle.sin()], 1)
    assert within_errors(sdf.Function(call, 2, 1.0, absolute=4 * 2.0**-53 * 1e6), x, 3)
    assert not within_errors(sdf.Function(call, 2, 1.0, roundings=4), x, 3)


def test_the_error_is_the_stated_one() -> None:
    # gamma(10) (|f| + K |x| + |f(0)|) + absolute; gamma counts one rounding more, for itself.
    for absolute in (0.0, 1e-15):
        field = sdf.Function(lambda x: x[:, 0] + 3, 1, 1.0, roundings=10, absolute=absolute)
        found = field.measure(torch.tensor([[2.0]]))
        assert float(found.error) == pytest.approx(absolute + 11 * 2.0**-53 * (5 + 2 + 3), rel=1e-9, abs=0)


def test_the_constant_is_stated_and_certifies() -> None:
    field = sdf.Function(lambda x: 2 * x.sum(1), 4, 4.0)
    assert field.bound.kind is Kind.UPPER
    assert field.bound.subject is None
    assert 4.0 <= constant_of(field) <= 4.0 * (1 + 1e-14)
    assert torch.equal(field.gradient(torch.zeros(2, 4)), torch.full((2, 4), 2.0, dtype=torch.float64))


def test_what_cannot_be_a_field_is_refused() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]

    with pytest.raises(ArgumentError, match="constant=-1"):
        sdf.Function(first, 2, -1.0)
    with pytest.raises(ArgumentError, match="dim=0"):
        sdf.Function(first, 0, 1.0)
    # From 2^53 roundings on k u / (1 - k u) is negative, and so was the error.
    with pytest.raises(ArgumentError, match="roundings=100000000000000000"):
        sdf.Function(first, 2, 1.0, roundings=10**17)
    with pytest.raises(NonFiniteError, match="origin"):
        sdf.Function(lambda x: 1 / x[:, 0], 2, 1.0)
    bad: list[tuple[Any, type[Exception], str]] = [
        (lambda x: x, ShapeError, "shape"),
        (lambda _: 1.0, ShapeError, "float"),
        (lambda x: x[:, 0].float(), ArgumentError, "float32"),
    ]
    with unchecked():
        for name in ("dim", "roundings"):
            with pytest.raises(ArgumentError, match=f"{name} is a whole number, got {name}=2.5"):
                sdf.Function(first, **{"dim": 2, "constant": 1.0, name: 2.5})  # pyright: ignore[reportArgumentType]
        for name in ("constant", "absolute"):
            with pytest.raises(ArgumentError, match=f"{name} is one real number, got '1'"):
                sdf.Function(first, **{"dim": 2, "constant": 1.0, name: "1"})  # pyright: ignore[reportArgumentType]
        for call, error, words in bad:
            with pytest.raises(error, match=words):
                sdf.Function(call, 2, 1.0)
