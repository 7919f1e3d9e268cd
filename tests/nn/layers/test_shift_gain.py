"""ShiftBlock promises as much of its weight as linear layers with the same method, and no more."""

import math

import pytest
import torch
from torch import nn

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Metric
from lipkit.errors import MetricError, UnsupportedError
from support.unchecked import unchecked


def test_the_gain_in_bfloat16_counts_rounding() -> None:
    """A Hadamard matrix whose entries all round up."""
    side = torch.ones(4, 4, dtype=torch.float64) - 2 * torch.eye(4, dtype=torch.float64)
    hadamard = torch.kron(side, torch.kron(side, torch.kron(side, side)))
    middle = (1 - 3 * 2.0**-9) / 16
    block = lnn.ShiftBlock(256, bias=False, method=lnn.SingularClip())
    with torch.no_grad():
        raw = block.get_parameter("parametrizations.weight.original")
        raw.copy_(hadamard * (middle + hadamard * 2e-2 * middle * 2**-9) / (1 - 2.0**-8))
    assert block.gain == 1
    block.bfloat16()
    norm = float(torch.linalg.matrix_norm(block.weight.detach().double(), 2))
    assert 1.02 < norm <= block.gain < 1.06
    chain = lnn.Sequential(block, K=1.0)
    # Around the reduction by the factor there is no other: the norm of the chain's linear part.
    assert norm * chain.factor <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_gain_is_that_of_a_linear_layer(dtype: torch.dtype) -> None:
    assert lnn.ShiftBlock(16).to(dtype).gain == lnn.Linear(16, 16).to(dtype).gain


def test_methods_for_other_norms_promise_nothing_in_l2() -> None:
    for method in (lnn.LpBall(1.0), lnn.UnitRows(), lnn.UnitLines(Metric(math.inf, math.inf))):
        with unchecked():
            block = lnn.ShiftBlock(8, method=method)  # pyright: ignore[reportArgumentType] - what is refused
        with pytest.raises(MetricError, match="says nothing in l2"):
            _ = block.gain
        with pytest.raises(MetricError):
            lnn.Sequential(block)


def test_a_plain_weight_is_proven_as_it_is() -> None:
    block = lnn.ShiftBlock(8, method=None)
    with torch.no_grad():
        block.weight.mul_(1.5)
    with pytest.raises(UnsupportedError, match=r"torch\.nn\.Sequential"):
        _ = block.gain
    bound = lipkit.lipschitz(nn.Sequential(block, nn.Flatten()), torch.zeros(1, 8, 3, 3))
    # Float32 makes the start orthogonal to about 1e-6.
    assert 1.5 - 1e-5 < float(bound.value.detach()) < 1.5 + 1e-5


def test_a_chain_with_a_constant_takes_no_plain_weight() -> None:
    with pytest.raises(UnsupportedError, match="method=None"):
        lnn.Sequential(lnn.ShiftBlock(8, method=None), K=1.0)
