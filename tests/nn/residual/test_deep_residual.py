"""Hundreds of convex potential layers without normalisation: shares of one over the depth keep the gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn

DEPTH, WIDTH = 200, 4


def stack(share: float | None) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [lnn.CPL(WIDTH, steps=2) for _ in range(DEPTH)]
    return nn.Sequential(*(one if share is None else lnn.ConvexResidual(one, start=share) for one in layers))


def least_slope(model: nn.Sequential, x: Tensor) -> float:
    """The smallest singular value of the Jacobian at one point."""
    jacobian: Any = torch.autograd.functional.jacobian(model, x)
    return float(torch.linalg.svdvals(jacobian.double())[-1])


@pytest.mark.slow
def test_no_direction_loses_more_than_the_shares_say() -> None:
    """(1 - a) I + a J with -I <= J <= I symmetric has no eigenvalue below 1 - 2 a."""
    model = stack(1 / DEPTH)
    x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    # For rounding in float32, 200 layers long.
    assert least_slope(model, x) >= (1 - 2 / DEPTH) ** DEPTH - 1e-3
    assert least_slope(stack(None), x) < 1e-6


@pytest.mark.train
def test_two_hundred_layers_learn() -> None:
    model = stack(1 / DEPTH)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, WIDTH, generator=generator)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(6):
        loss = functional.cross_entropy(5 * model(x)[:, :2], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert least_slope(model, x[0]) > 0.1
