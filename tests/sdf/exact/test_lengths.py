"""Lengths within their error, where squares leave the range of float64 too."""

import mpmath
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.sdf.exact.lengths import length_error, lengths

COORDINATE = st.floats(-1e150, 1e150)


@given(x=st.lists(COORDINATE, min_size=3, max_size=3), y=st.lists(COORDINATE, min_size=3, max_size=3))
def test_lengths_of_differences_are_within_their_error(x: list[float], y: list[float]) -> None:
    found = lengths(torch.tensor([x], dtype=torch.float64) - torch.tensor([y], dtype=torch.float64))
    error = float(length_error(3, found))
    with mpmath.workdps(400):
        truth = mpmath.sqrt(mpmath.fsum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(x, y, strict=True)))
        assert abs(mpmath.mpf(float(found)) - truth) <= error


def test_squares_that_vanish_are_counted() -> None:
    found = lengths(torch.full((1, 100), 1e-162, dtype=torch.float64))
    # The length is 1e-161, its squares are zero.
    assert abs(float(found) - 1e-161) <= float(length_error(100, found)) < 1e-150


def test_the_gradient_at_zero_is_zero() -> None:
    x = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    lengths(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().max()) == 0
