"""The start with norm 1: singular values of the written-out operators."""

from typing import Any

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError
from support.layers.checks import plain_twin


def largest(layer: nn.Module, shape: tuple[int, ...]) -> float:
    size = torch.Size(shape).numel()
    units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return float(torch.linalg.matrix_norm(plain_twin(layer)(units).flatten(1).detach(), 2))


def test_every_plain_layer_of_a_model_has_norm_one():
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv2d(2, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.Flatten(), nn.Linear(36, 5)
    )
    assert lnn.spectral_(model) is model
    for layer, shape in ((model[0], (2, 12, 12)), (model[2], (4, 12, 12)), (model[4], (36,))):
        found = largest(layer, shape)
        assert found <= 1 + 1e-12
        # `Spectral` ends between 0.98 and 1, and an image of twelve pixels sees most of that.
        assert found > 0.93
        assert not layer.bias.any()
    # Of the reshaped kernel the norm is another one: dividing by it leaves an operator of norm above 1.
    kernel = model[0].weight.detach()
    with torch.no_grad():
        model[0].weight.div_(torch.linalg.matrix_norm(kernel.flatten(1), 2))
    assert largest(model[0], (2, 12, 12)) > 1.2


def test_constrained_layers_are_left_alone():
    model: Any = nn.Sequential(lnn.Linear(4, 4), nn.Linear(4, 4))
    before = model[0].weight.detach().clone()
    lnn.spectral_(model)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(ArgumentError, match="has none"):
        lnn.spectral_(lnn.Linear(4, 4))
    with pytest.raises(ArgumentError, match="float32 and float64"):
        lnn.spectral_(nn.Linear(4, 4).to(torch.bfloat16))
    with pytest.raises(ArgumentError, match="no numbers yet"):
        lnn.spectral_(nn.LazyLinear(4))
