"""What is printed of the exponential and of the Cayley map, and what they reach."""

import math

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.optim import ExponentialRetraction, RiemannianSGD


@pytest.mark.parametrize("method", [lnn.Exponential(), lnn.Cayley()], ids=str)
def test_exponentials_and_cayley_maps_are_rotations(method: lnn.Exponential | lnn.Cayley) -> None:
    torch.manual_seed(0)
    raw = 10 * torch.randn(50, 3, 3, dtype=torch.float64)
    found = method.matrix(raw)
    # Entries of a weight are rounded, and shrunk by about as much.
    torch.testing.assert_close(torch.linalg.det(found), torch.ones(50, dtype=torch.float64), atol=1e-6, rtol=0)
    plane = method.matrix(torch.tensor([[[0.0, 500.0], [0.0, 0.0]]], dtype=torch.float64))[0]
    angle = abs(math.atan2(float(plane[1, 0]), float(plane[0, 0])))
    # The entry of the skew matrix is 500: an angle of 500 for the exponential (capped), less than pi for the other.
    assert angle < math.pi
    if isinstance(method, lnn.Cayley):
        assert angle == pytest.approx(2 * math.atan(500), abs=1e-6)


def test_unitary_matrices_need_complex_directions() -> None:
    """From 1 to -1: the complex number turns, the real one has no tangent to go along."""
    target = -1.0
    for dtype, end in ((torch.complex128, -1.0), (torch.float64, 1.0)):
        # Not quite 1, where the gradient vanishes on the circle.
        start = torch.polar(torch.ones(1, 1).double(), torch.full((1, 1), 0.1).double())
        weight = nn.Parameter(start if dtype.is_complex else torch.ones(1, 1, dtype=dtype))
        optimizer = RiemannianSGD([weight], 0.1, retraction=ExponentialRetraction())
        for _ in range(400):
            optimizer.zero_grad()
            (weight - target).abs().square().sum().backward()
            optimizer.step()
        assert complex(weight.detach()) == pytest.approx(end, abs=1e-8)
