"""Attention by hand, and masks of -inf: recognised, with the same values."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit.linops import Reshape
from lipkit.regions import Reach
from lipkit.trace.capture import capture, merge_known_layers
from lipkit.trace.network import Network
from lipkit.trace.nodes import Identity, Pointwise, Softmax
from lipkit.trace.rewrites.spelled_attention import merge_masks


def names(network: Network) -> list[str]:
    return [str(node) for node in network.nodes if str(node) != "identity"]


class Masked(nn.Module):
    """A softmax that does not see its diagonal."""

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(torch.eye(4, 6, dtype=torch.bool), -math.inf).softmax(-1)


class Attends(nn.Module):
    """Two heads of attention by hand, with some mask."""

    def __init__(self, mask: Callable[[Tensor], Tensor] = lambda s: s) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 12)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = self.mask(q @ k.transpose(-1, -2) / math.sqrt(2)).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


HIDDEN = torch.ones(4, 4, dtype=torch.bool).triu(1)
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda s: s,
    "causal": lambda s: s.masked_fill(HIDDEN, -math.inf),
    "added": lambda s: s + torch.zeros(4, 4).masked_fill(HIDDEN, -math.inf),
    "bias": lambda s: 0.5 * (s + torch.arange(4.0)),
    "large": lambda s: s.masked_fill(HIDDEN, -1e9),
}


@pytest.mark.parametrize("name", ["none", "causal", "added", "bias"])
def test_attention_by_hand_becomes_attention(name: str):
    model = Attends(MASKS[name]).double().eval()
    before = capture(model, torch.randn(1, 4, 6, dtype=torch.float64))
    after = merge_known_layers(before)
    assert names(after) == ["attention"]
    x = torch.randn(20, 4, 6, dtype=torch.float64)
    assert torch.allclose(after(x), model(x), rtol=1e-12, atol=1e-13)


def test_a_mask_of_large_numbers_stays_what_it_is():
    # -1e9 is a number, not -inf: the function with it is another one, by 1e-400000000.
    model = Attends(MASKS["large"]).double().eval()
    after = merge_known_layers(capture(model, torch.randn(1, 4, 6, dtype=torch.float64)))
    assert names(after) == ["matrix product", "softmax", "matrix product"]


def test_masked_scores_are_hidden_from_the_softmax():
    before = capture(Masked(), torch.randn(1, 4, 6))
    after = merge_masks(before)
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    assert torch.equal(after(x), before(x))
    assert all(bool(torch.isfinite(b).all()) for b in after.biases.values())
    (node,) = (node for node in after.nodes if isinstance(node, Softmax))
    zero = torch.zeros(node.shape, dtype=torch.float64)
    found = node.reach(Reach(zero, zero, zero, torch.zeros((), dtype=torch.float64)))
    assert found.high.reshape(4, 6).diagonal().tolist() == [0.0] * 4
    assert found.high.reshape(4, 6)[0, 1].item() == pytest.approx(0.2)


def test_a_row_that_sees_nothing_is_left_alone():
    same = Reshape((2, 3), (2, 3))
    network = Network(
        (2, 3),
        (Pointwise(Identity(), (2, 3)), Softmax((2, 3))),
        {(1, 0): same, (2, 1): same, (3, 2): same},
        {1: torch.tensor([[0.0, -math.inf, 0.0], [-math.inf] * 3])},
        target=(2, 3),
    )
    assert merge_masks(network) is network


class ScaledScores(nn.Module):
    """Attention by angles with a learnt number, as a condensed layer spells it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        short = x / (1 + x.square().sum(-1, keepdim=True)).sqrt()
        return (short @ (short * self.scale).mT).softmax(-1) @ short


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_learnt_numbers_of_few_digits_are_read(dtype: torch.dtype):
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    model = ScaledScores()
    network = capture(model.to(dtype), x)
    # The network evaluates in the type of its input; the number 1 has no rounding in any.
    torch.testing.assert_close(network(x.double()), model.double()(x.double()), rtol=0, atol=1e-12)
