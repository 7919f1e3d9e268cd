"""Layers with kernels from Fourier space, for the tests of their methods."""

from typing import Any

import pytest
from torch import nn

from lipkit import nn as lnn
from lipkit.nn.methods.fourier._base import FourierMethod

KINDS = (lnn.LOT, lnn.FourierCayley, lnn.BRO)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
CONV = {1: lnn.Conv1d, 2: lnn.Conv2d, 3: lnn.Conv3d}


def layer_of(method: FourierMethod, c_in: int, c_out: int, kernel: int = 3, **others: Any) -> Any:
    """A circular convolution that keeps the size."""
    settings = {"padding": "same", "padding_mode": "circular"} | others
    return CONV[len(method.in_size)](c_in, c_out, kernel, method=method, **settings)


def raw_of(layer: nn.Module) -> nn.Parameter:
    """Its free numbers."""
    return layer.get_parameter("parametrizations.weight.original")
