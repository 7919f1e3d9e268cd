"""The largest Euclidean norm of a row or column of a convolution, without its matrix."""

import math

import pytest
import torch

from lipkit.linops import Conv, ConvTranspose, LinearOperator, Padding, materialize
from lipkit.norms import Mixed

SAME = ((1, 1), (1, 1))


def operators(scale: float) -> list[LinearOperator]:
    torch.manual_seed(0)
    weight = scale * torch.randn(4, 2, 3, 3, dtype=torch.float64)
    return [
        Conv(weight, (5, 6), (1, 1), SAME, (1, 1), 2),
        Conv(weight, (5, 6), (2, 3), SAME, (1, 2), 1),
        Conv(weight, (4, 6), (2, 1), SAME, (1, 1), 1, Padding.CIRCULAR),
        # Taps meet around the circle.
        Conv(weight, (2, 2), (1, 1), SAME, (1, 1), 1, Padding.CIRCULAR),
        Conv(weight, (4, 6), (1, 1), SAME, (1, 1), 1, Padding.REFLECT),
        ConvTranspose(weight, (3, 4), (2, 1), (1, 0), (1, 0), (1, 1), 2),
        Conv(0 * weight, (5, 6), (1, 1), SAME, (1, 1), 2),
    ]


@pytest.mark.parametrize("scale", [1.0, 1e-290, 1e290])
@pytest.mark.parametrize("which", range(7))
def test_agrees_with_the_matrix(which: int, scale: float) -> None:
    op, unit = operators(scale)[which], operators(1.0)[which]
    for norm, axis in ((Mixed(2.0, math.inf), 1), (Mixed(1.0, 2.0), 0)):
        truth = float(torch.linalg.vector_norm(materialize(unit), dim=axis).max())
        bound = norm(op)
        value = float(bound.log_value) - (math.log(scale) if truth else 0.0)
        assert value == (pytest.approx(math.log(truth), abs=1e-11) if truth else -math.inf)
        if scale == 1:
            assert float(bound.value) >= truth * (1 - 1e-15)


def test_gradients_reach_the_weight() -> None:
    for axis, norm in enumerate((Mixed(1.0, 2.0), Mixed(2.0, math.inf))):
        weight = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
        op = Conv(weight, (7,), (2,), ((1, 1),), (1,))
        (found,) = torch.autograd.grad(norm(op).value, weight)
        (expected,) = torch.autograd.grad(torch.linalg.vector_norm(materialize(op), dim=axis).max(), weight)
        torch.testing.assert_close(found, expected)
    zero = torch.zeros(3, 2, 3, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(Mixed(2.0, math.inf)(Conv(zero, (7,), (1,), ((1, 1),), (1,))).log_value, zero)
    assert not bool(found.any())
