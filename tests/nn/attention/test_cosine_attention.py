"""Cosine attention and the block built from it: constants against Jacobians that gradient ascent finds."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.attention.cosine_attention import CosineMixing, cosine_attention_constant
from lipkit.nn.core.bounded_length import bound_length
from support.jacobians import climbed, norm_at
from support.proven import proven

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12


class Mixed(nn.Module):
    """(q, k, v) side by side -> the mixture of one head."""

    def __init__(self, scale: float, is_causal: bool = False, length: float = 1.0) -> None:
        super().__init__()
        self.mixing = CosineMixing(1, scale, length).double()
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x[:, None].chunk(3, -1)
        return self.mixing(q, k, v, None, self.is_causal)[:, 0]


def drawn(*shape: int) -> list[Tensor]:
    return [size * torch.randn(1, *shape, dtype=torch.float64) for size in (0.3, 1.0, 3.0)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("tokens", "scale"), [(1, 1.0), (2, 0.5), (2, 10.0), (5, 3.0), (6, 1.0)])
def test_no_jacobian_that_ascent_finds_exceeds_the_constant(tokens: int, scale: float, is_causal: bool):
    torch.manual_seed(0)
    assert climbed(Mixed(scale, is_causal), drawn(tokens, 6), steps=20) <= ROUNDING


def test_the_constant_is_attained_up_to_a_factor():
    # Without scores the mean of n equal tokens has norm 1; far apart scores make one column of ones.
    torch.manual_seed(0)
    assert climbed(Mixed(2.0), drawn(2, 3), steps=60) > 0.5
    assert climbed(Mixed(1e-6), [torch.zeros(1, 4, 3, dtype=torch.float64)], steps=1) == pytest.approx(1, rel=1e-5)


def test_the_mixture_is_the_one_of_the_definition():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 5, dtype=torch.float64).unbind()
    module = CosineMixing(1, 1.7, 0.6).double()
    units = [part / (part.square().sum(1, keepdim=True) + 0.36).sqrt() for part in (q, k, v)]
    p = (math.exp(float(module.log_scale.detach())) * units[0] @ units[1].mT).softmax(1)
    column = 4 / (1 + 3 * math.exp(-3.4))
    expected = 0.6 * p @ units[2] / math.sqrt(column + 1.7**2 * (1 + column))
    # The scale and the length were rounded to float32, and the factor is made smaller by 2^-22.
    assert torch.allclose(module(q[None], k[None], v[None])[0], expected, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_largest_column_sum(is_causal: bool):
    """Tokens of length 1 whose scores are as far apart as they can be: one key is liked by all."""
    for tokens, scale in ((2, 1.0), (7, 0.5), (7, 4.0)):
        k = torch.zeros(tokens, 1, dtype=torch.float64) - 1
        k[0] = 1
        scores = (scale * torch.ones_like(k) @ k.mT).masked_fill(
            torch.ones(tokens, tokens, dtype=torch.bool).triu(1) & is_causal, -math.inf
        )
        column = float(scores.softmax(1).sum(0).max())
        constant = float(cosine_attention_constant(torch.tensor([scale]).double(), tokens, tokens, is_causal))
        assert constant == pytest.approx(math.sqrt(column + scale**2 * (1 + column)), rel=1e-12)


def test_the_published_sum_of_parts_is_larger():
    """(n t / 2)(|W_Q| + |W_K|) + sqrt(n) |W_V| for eps = 1, with parts of norm 1/sqrt(3), as an isometry has them."""
    for tokens in (4, 16, 64):
        for scale in (1.0, 10.0):
            ours = float(cosine_attention_constant(torch.tensor([scale]).double(), tokens, tokens))
            assert ours < (tokens * scale + math.sqrt(tokens)) / math.sqrt(3)


def test_without_smoothing_there_is_no_constant_and_for_fixed_length_there_is():
    """Remark 4.1: the module "remains not globally Lipschitz" because of n; it is for each n, with smooth rows."""
    plain = nn.Module()
    plain.forward = lambda x: x / x.norm(dim=-1, keepdim=True)  # pyright: ignore[reportAttributeAccessIssue]
    for size in (1e-2, 1e-6):
        x = size * torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        assert norm_at(plain, x) == pytest.approx(1 / size)
    torch.manual_seed(0)
    # Divided by its constant for four tokens and eps = 0.01, which is then at most 1 wherever it is looked at.
    smooth = Mixed(3.0, length=math.sqrt(0.01))
    for size in (1e-3, 0.1, 1.0, 1e3, 1e6):
        assert norm_at(smooth, size * torch.randn(1, 4, 6, dtype=torch.float64)) <= ROUNDING


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_the_layer_has_constant_one(tokens: int, is_causal: bool):
    torch.manual_seed(0)
    module = lnn.CosineAttention(4, 2, is_causal=is_causal, scale=4.0, length=0.5).double().eval()
    assert climbed(module, drawn(tokens, 4), steps=10) <= ROUNDING
    assert proven(module, torch.zeros(1, tokens, 4).double()) <= ROUNDING


def test_the_stated_length_holds_for_shorter_sequences():
    torch.manual_seed(0)
    module = lnn.CosineAttention(4, 1, tokens=9, scale=2.0).double().eval()
    for tokens in (1, 3, 9):
        assert climbed(module, drawn(tokens, 4)[:2], steps=10) <= ROUNDING
    with pytest.raises(ShapeError, match="at most 9 tokens"):
        module(torch.zeros(1, 10, 4).double())
    with pytest.raises(ArgumentError, match="num_heads=3"):
        lnn.CosineAttention(4, 3)
    with pytest.raises(ArgumentError, match="length must be a positive number, got 0"):
        lnn.CosineAttention(4, 2, length=0.0)


def test_huge_tiny_and_equal_tokens():
    torch.manual_seed(0)
    module = lnn.CosineAttention(4, 2, is_causal=True)
    for size in (1e34, 1e18, 1e-42, 0.0):
        x = (size * torch.randn(2, 3, 4)).requires_grad_()
        y = module(x)
        gradients = torch.autograd.grad(y.sum(), [x, *module.parameters()])
        assert bool(torch.isfinite(y).all())
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
    # Without biases equal tokens give equal outputs, and values of any size are shortened to length 1.
    module = lnn.CosineAttention(4, 1, bias=False)
    equal = module(1e20 * torch.randn(1, 1, 4).expand(1, 3, 4))
    assert torch.allclose(equal[:, 0], equal[:, 1])
    assert float(equal[0, 0].norm().detach()) <= 1


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
def test_shortening_has_constant_one_and_keeps_directions(length: float):
    torch.manual_seed(0)
    module = nn.Module()
    limit = torch.tensor(length, dtype=torch.float64)
    module.forward = lambda x: bound_length(x, limit)  # pyright: ignore[reportAttributeAccessIssue]
    for size in (0.0, 1e-3, 1.0, 1e3, 1e6):
        x = size * length * torch.randn(1, 5, dtype=torch.float64)
        assert norm_at(module, x) <= ROUNDING
        expected = x / (1 + x.square().sum() / length**2).sqrt()
        assert torch.allclose(bound_length(x, limit), expected, rtol=1e-12)
        assert bound_length(x, limit).norm() <= length * ROUNDING
    assert norm_at(module, torch.zeros(1, 5, dtype=torch.float64)) == 1
    far = bound_length(torch.full((1, 4), 1e200, dtype=torch.float64), limit)
    assert torch.allclose(far, limit / 2)


def test_the_block_has_its_constant_with_weights_of_either_sign():
    """x + a g(x) has 1 + max |a| L, not the printed 1 + max a: a = -1 and g = -x double the input."""
    torch.manual_seed(0)
    block = lnn.LipsFormerBlock(4, 2, 6, alpha=0.8).double().eval()
    assert block.gain == pytest.approx(1.8**2)
    for sign in (1.0, -1.0):
        with torch.no_grad():
            block.weight1.fill_(5 * sign)
            block.weight2.fill_(5 * sign)
        found = climbed(block, drawn(3, 4), steps=10)
        assert 1 < found <= block.gain
    declared = float(block.declared_lipschitz((3, 4)).value.detach())
    assert found <= declared <= block.gain
    assert proven(block, torch.zeros(1, 3, 4).double()) <= block.gain * ROUNDING
    with pytest.raises(ArgumentError, match=r"alpha must be a positive number, got -1"):
        lnn.LipsFormerBlock(4, 2, alpha=-1.0)


def test_a_stack_of_blocks_is_divided_by_its_constant():
    torch.manual_seed(0)
    blocks = [lnn.LipsFormerBlock(4, 2, 6, alpha=1 / 3) for _ in range(3)]
    model = lnn.Sequential(*blocks).double().eval()
    assert math.prod(block.gain for block in blocks) < math.e**2
    assert climbed(model, drawn(2, 4)[:1], steps=5) <= ROUNDING


@pytest.mark.parametrize("length", [2e-9, 0.1, 1.0])
def test_shortening_takes_the_largest_numbers(length: float):
    long = torch.tensor([[3e38, 1.0], [-3e38, 3e38]])
    found = bound_length(long, torch.tensor(length))
    # As long as the length, up to rounding in float32.
    assert torch.allclose(found.norm(dim=-1), torch.full((2,), length), rtol=1e-6, atol=0)
    layer = lnn.CosineAttention(4, 2, length=length)
    # Sums of four such numbers are in range.
    assert bool(layer(torch.full((1, 3, 4), 5e37)).isfinite().all())
