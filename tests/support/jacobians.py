"""Norms of Jacobians by brute force: the oracle for layers that state their constant."""

import torch
from torch import Tensor, nn


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """The dense Jacobian at one point, as a matrix; `x` has a batch axis of length one, or is the whole batch."""
    full = torch.autograd.functional.jacobian(module, x)
    assert isinstance(full, Tensor)
    return full.reshape(-1, x.numel())


def norm_at(module: nn.Module, x: Tensor) -> float:
    """The spectral norm of the Jacobian at one point."""
    return float(torch.linalg.matrix_norm(jacobian(module, x), 2))


def steepest(module: nn.Module, shape: tuple[int, ...], points: int = 8, seed: int = 0) -> float:
    """The largest norm of the Jacobian over random points of several sizes, zero and a constant among them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        for scale in (0.1, 1.0, 10.0)
        for _ in range(points)
    ]
    return max(
        norm_at(module, x) for x in (*drawn, torch.zeros(shape, dtype=torch.float64), torch.ones(shape).double())
    )
