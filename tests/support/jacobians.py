"""Norms of Jacobians by brute force: the oracle for layers that state their constant."""

import torch
from torch import Tensor, nn

from lipkit.nn import condense


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


def climbed(module: nn.Module, starts: list[Tensor], steps: int = 60, rate: float = 0.05) -> float:
    """The largest norm of the Jacobian that gradient ascent finds from these inputs, each with a batch axis of one."""
    best = 0.0
    # Weights that are computed are not computed again at every step.
    plain = condense(module).requires_grad_(False)
    for start in starts:
        x = start.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([x], rate)
        for _ in range(steps):
            full = torch.func.jacrev(lambda z: plain(z[None])[0])(x[0])
            value = torch.linalg.matrix_norm(full.reshape(-1, x.numel()), 2)
            best = max(best, value.item())
            if not value.requires_grad:
                # Piecewise linear: slopes do not change nearby.
                break
            optimizer.zero_grad()
            (-value).backward()
            optimizer.step()
    return best
