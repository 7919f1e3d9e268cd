"""Plain orthonormal weights: where they start, and averages pulled back."""

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError


def values(weight: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(weight.detach().flatten(1).to(torch.float64))


@pytest.mark.parametrize("size", [1, 8, 65])
def test_near_the_identity(size: int) -> None:
    torch.manual_seed(size)
    found = lnn.near_identity(size)
    assert float(values(found).max()) <= 1
    # The contract of orthogonal methods in float32.
    assert float(values(found).min()) >= 1 - 2e-5
    # Noise of norm about 0.2; the norm of a random matrix varies by a third at these sizes.
    assert float(values(found - torch.eye(size)).max()) < 0.3


@pytest.mark.parametrize("shape", [(6, 6), (6, 10), (10, 6), (10, 6, 1, 1), (4, 9, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_become_the_nearest_orthonormal_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    first = nn.init.orthogonal_(torch.empty(shape, dtype=dtype))
    # As an average of neighbours: shorter, and off by a little in every direction.
    weight = nn.Parameter(0.9 * first + 0.05 * torch.randn(shape, dtype=dtype))
    u, _, vh = torch.linalg.svd(weight.detach().flatten(1).to(torch.float64), full_matrices=False)
    lnn.orthonormal_([weight])
    assert weight.shape == torch.Size(shape)
    assert weight.grad_fn is None
    # As stored, by a decomposition that is off by some 1e-15 itself.
    assert float(values(weight).max()) <= 1 + 1e-14
    # Björck shrinks by a few units of float32, 1e-6, and ends within the contract's 2e-5.
    torch.testing.assert_close(weight.detach().flatten(1).to(torch.float64), u @ vh, rtol=0, atol=2e-5)


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        lnn.near_identity(0)
    with pytest.raises(ShapeError, match=r"one tap, got shape \(4, 4, 3, 3\)"):
        lnn.orthonormal_([torch.zeros(4, 4, 3, 3)])
    with pytest.raises(ShapeError, match=r"got shape \(4,\)"):
        lnn.orthonormal_([torch.zeros(4)])
    with pytest.raises(ArgumentError, match=r"got one \(6, 6, 1, 1\); wrap it in \[\]"):
        lnn.orthonormal_(nn.Conv2d(6, 6, 1).weight)
    with pytest.raises(ArgumentError, match=r"got torch\.bfloat16; convert"):
        lnn.orthonormal_([torch.eye(4, dtype=torch.bfloat16)])
    with pytest.raises(ShapeError, match=r"got shape \(0, 4\)"):
        lnn.orthonormal_([torch.zeros(0, 4)])
