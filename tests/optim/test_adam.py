"""Riemannian Adam against its formula, written out, and against what its authors print."""

import numpy as np
import pytest
import torch
from torch import nn

from lipkit.errors import NonFiniteError
from lipkit.optim import RiemannianAdam
from support.orthonormal import parameter

BETAS = (0.8, 0.95)


def tangent(point: np.ndarray, direction: np.ndarray) -> np.ndarray:
    inner = point.conj().T @ direction
    return direction - point @ (inner + inner.conj().T) / 2


def qr(matrix: np.ndarray) -> np.ndarray:
    q, r = np.linalg.qr(matrix)
    phases = np.diag(r) / np.abs(np.diag(r))
    return q * phases


def by_hand(point: np.ndarray, gradients: list[np.ndarray], lr: float, eps: float, entries: float) -> np.ndarray:
    moment, square = np.zeros_like(point), 0.0
    for t, gradient in enumerate(gradients, 1):
        g = tangent(point, gradient)
        moment = BETAS[0] * tangent(point, moment) + (1 - BETAS[0]) * g
        square = BETAS[1] * square + (1 - BETAS[1]) * float((np.abs(g) ** 2).sum()) / entries
        step = moment / (1 - BETAS[0] ** t) / (np.sqrt(square / (1 - BETAS[1] ** t)) + eps)
        point = qr(point - lr * step)
    return point


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (6, 1)])
def test_steps_are_the_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = parameter(*shape, dtype=dtype)
    turn = shape[0] < shape[1]
    start = weight.detach().numpy().copy()
    torch.manual_seed(0)
    gradients = [torch.randn(shape, dtype=dtype) * 10.0 ** (i % 3 - 1) for i in range(6)]
    optimizer = RiemannianAdam([weight], 0.05, BETAS, eps=1e-3)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    tall = [g.numpy().T if turn else g.numpy() for g in gradients]
    expected = by_hand(start.T if turn else start, tall, 0.05, 1e-3, start.size)
    # The authors divide by the norm, not by its mean over entries: the rate, and eps, times the root of their number.
    root = float(np.sqrt(start.size))
    published = by_hand(start.T if turn else start, tall, 0.05 * root, 1e-3 * root, 1.0)
    found = weight.detach().numpy()
    # Six factorisations and some products.
    np.testing.assert_allclose(found.T if turn else found, expected, atol=1e-12)
    np.testing.assert_allclose(expected, published, atol=1e-12)


def test_members_of_a_batch_keep_their_own_count() -> None:
    early, late = parameter(5, 3, 1), parameter(5, 3, 2)
    optimizer = RiemannianAdam([early, late], 0.05)
    alone = nn.Parameter(late.detach().clone())
    other = RiemannianAdam([alone], 0.05)
    torch.manual_seed(0)
    for step in range(4):
        early.grad = torch.randn_like(early)
        if step >= 2:
            late.grad = torch.randn_like(late)
            alone.grad = late.grad.clone()
            other.step()
        optimizer.step()
    assert torch.allclose(late, alone, atol=1e-14)


def test_the_first_step_moves_entries_by_the_rate_whatever_the_gradient() -> None:
    for size in (1e-6, 1.0, 1e6):
        for shape in ((8, 8), (200, 20)):
            weight = parameter(*shape)
            before = weight.detach().clone()
            torch.manual_seed(0)
            weight.grad = size * torch.randn_like(weight)
            RiemannianAdam([weight], 1e-3, eps=1e-12).step()
            moved = float((weight.detach() - before).square().mean().sqrt())
            # The way back is of second order.
            assert moved == pytest.approx(1e-3, rel=1e-2)


def test_squares_beyond_the_range_are_refused() -> None:
    weight = parameter(4, 3, dtype=torch.float32)
    optimizer = RiemannianAdam([weight])
    weight.grad = torch.full_like(weight, 1e25)
    with pytest.raises(NonFiniteError, match="loss"):
        optimizer.step()
