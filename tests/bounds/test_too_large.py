"""What is too large says how large, what the limit is, and a way that works on the same network."""

import re

import pytest
import torch
from torch import nn

from lipkit.bound import Kind
from lipkit.bounds import DAG, ECLipsE, LipLT, LipSDP, Method, SeqLip
from lipkit.bounds.sdp import lipsdp as sizes
from lipkit.bounds.sdp.lipsdp import variables
from lipkit.errors import TooLargeError
from lipkit.linops import Dense
from lipkit.trace import Network, chain
from lipkit.trace.capture import capture
from lipkit.trace.nodes import RELU


def cnn(channels: int, image: int) -> Network:
    torch.manual_seed(0)
    # Gradients are not asked for.
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(channels * image**2, 2)
    )
    return capture(model.requires_grad_(False), torch.randn(1, 3, image, image))


@pytest.mark.parametrize("method", [LipSDP(), LipSDP(split=1), ECLipsE(), SeqLip()], ids=str)
def test_a_map_that_is_not_written_out(method: Method):
    network = cnn(40, 28)  # 31360 x 2352 entries, more than 2^26
    with pytest.raises(TooLargeError, match=r"31360 x 2352 = 73758720 .* 67108864; use LipLT\(\) or Auto\(\)"):
        method(network)
    assert LipLT()(network).kind is Kind.UPPER


@pytest.mark.parametrize("method", [LipSDP(), ECLipsE()], ids=str)
def test_a_program_with_too_many_variables(method: Method):
    network = cnn(8, 28)
    with pytest.raises(TooLargeError, match=r"8624 variables \(2352 .* 6272 nonlinear .* 6000; use LipLT\(\) or Auto"):
        method(network)


def test_parts_are_named_only_where_they_fit(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    network = chain([Dense(torch.randn(8, 8)) for _ in range(4)], RELU)
    monkeypatch.setattr(sizes, "VARIABLES", 20)
    with pytest.raises(TooLargeError, match=r"32 variables .* LipSDP\(split=1\), whose largest part has 16, or LipLT"):
        LipSDP()(network)
    assert float(LipSDP(split=1)(network).value) <= float(DAG()(network).value) * (1 + 1e-5)
    monkeypatch.setattr(sizes, "VARIABLES", 10)
    with pytest.raises(TooLargeError) as caught:
        LipSDP()(network)
    assert not re.search("split", str(caught.value))


def test_neurons_that_cannot_move_take_no_variable():
    weight = torch.randn(6, 3)
    weight[2:] = 0
    network = chain([Dense(weight), Dense(torch.randn(5, 6)), Dense(torch.randn(1, 5))], RELU)
    assert variables(network) == (3, 2 + 5)
