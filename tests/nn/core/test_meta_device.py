"""Layers without numbers, on torch's meta device: they are built, and know the shape of what they would compute."""

import torch
from torch import nn

from lipkit import nn as lnn


def test_layers_are_built_and_called_without_numbers() -> None:
    # Matrix methods, whose inverses look at no numbers.
    layers: tuple[tuple[nn.Module, tuple[int, ...]], ...] = (
        (lnn.Linear(3, 5, device=torch.device("meta")), (3,)),
        (lnn.Linear(4, 4, method=lnn.Spectral(), device=torch.device("meta")), (4,)),
        (lnn.ShiftBlock(8, device=torch.device("meta")), (8, 4, 4)),
        (lnn.CPL(6, device=torch.device("meta")), (6,)),
        (lnn.L2Attention(4, 2, device=torch.device("meta")), (3, 4)),
        (lnn.CosineAttention(4, 2, device=torch.device("meta")), (3, 4)),
        (lnn.LipsFormerBlock(4, 2, device=torch.device("meta")), (3, 4)),
        (lnn.LayerNorm(4, device=torch.device("meta")), (3, 4)),
        (lnn.GRU(4, 2, device=torch.device("meta")), (3, 4)),
        (lnn.OrthogonalRNN(4, 2, device=torch.device("meta")), (3, 4)),
    )
    for layer, shape in layers:
        assert all(parameter.is_meta for parameter in layer.parameters())
        found = layer(torch.empty(2, *shape, device="meta"))
        assert found.is_meta
        assert found.shape == layer.to_empty(device="cpu")(torch.zeros(2, *shape)).shape


def test_numbers_are_drawn_later() -> None:
    layer = lnn.Linear(5, 5, device=torch.device("meta")).to_empty(device="cpu")
    layer.reset_parameters()
    values = torch.linalg.svdvals(layer.weight.detach().double())
    assert float(values.max()) <= 1
    assert float(values.min()) > 1 - 1e-5
