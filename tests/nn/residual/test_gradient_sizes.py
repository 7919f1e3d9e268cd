"""No exploding gradients: layers of constant 1 bound the gradient of every weight and bias, sample by sample."""

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn

DEPTH, WIDTH = 12, 6


def network(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers.append(nn.Linear(WIDTH, WIDTH))
        if kind == "residual":
            layers.append(lnn.SLL(WIDTH))
        elif kind == "sandwich":
            layers.append(lnn.Sandwich(WIDTH, WIDTH))
        else:
            layers.append(lnn.ConvexResidual(lnn.MaxMin()))
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.div_(torch.linalg.matrix_norm(layer.weight, 2))
    return model


@pytest.mark.parametrize("kind", ["residual", "sandwich", "convex"])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_at_most_the_size_of_the_input_of_a_layer(kind: str, seed: int) -> None:
    """||dL/dW_i||_F <= ||dL/dy|| ||h_(i-1)|| and ||dL/db_i|| <= ||dL/dy||, for plain W_i of norm 1 at any depth."""
    model = network(kind)
    generator = torch.Generator().manual_seed(seed)
    h = 3 * torch.randn(1, WIDTH, dtype=torch.float64, generator=generator)
    inputs: dict[nn.Module, Tensor] = {}
    for layer in model:
        inputs[layer] = h.detach()
        h = layer(h)
    loss = (h - 1).pow(4).sum()
    (outer,) = torch.autograd.grad(loss, h, retain_graph=True)
    loss.backward()
    ratios: list[float] = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            # Products of a dozen layers round by some units of 2^-53.
            bound = float(outer.norm()) * (1 + 1e-12)
            assert float(layer.weight.grad.norm()) <= bound * float(inputs[layer].norm())
            assert float(layer.bias.grad.norm()) <= bound
            ratios.append(float(layer.bias.grad.norm()) / bound)
    # The bound says something: the last layer is near it, and a network of norm 2 would break it.
    assert max(ratios) > 0.3
