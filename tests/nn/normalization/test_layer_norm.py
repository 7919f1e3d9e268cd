"""Substitutes of layer, group and root mean square normalisation: dense Jacobians, and what they have of torch's."""

import math

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from support.jacobians import norm_at, steepest

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12

CASES = {
    "layer": (lambda eps: lnn.LayerNorm(5, eps), (1, 3, 5)),
    "layer over two axes": (lambda eps: lnn.LayerNorm((3, 5), eps), (1, 2, 3, 5)),
    "layer without weights": (lambda eps: lnn.LayerNorm(5, eps, elementwise_affine=False), (1, 5)),
    "rms": (lambda eps: lnn.RMSNorm(5, eps), (1, 3, 5)),
    "group": (lambda eps: lnn.GroupNorm(2, 4, eps), (1, 4, 3)),
    "group of vectors": (lambda eps: lnn.GroupNorm(1, 4, eps), (1, 4)),
}


@pytest.mark.parametrize("eps", [1e-5, 0.1, 100.0])
@pytest.mark.parametrize("name", CASES)
def test_the_constant_is_one_and_attained_near_zero(name: str, eps: float):
    torch.manual_seed(0)
    build, shape = CASES[name]
    module = build(eps).double()
    for size in (0.1, 1.0, 7.0):
        with torch.no_grad():
            for parameter in (module.weight, module.bias):
                if parameter is not None:
                    parameter.normal_(0, size)
        assert steepest(module, shape, points=2) <= ROUNDING
    if module.weight is not None:
        with torch.no_grad():
            module.weight.fill_(1.0)
    assert norm_at(module, torch.zeros(shape).double()) == pytest.approx(1)


@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_they_are_those_of_torch_times_the_root_of_eps(eps: float):
    torch.manual_seed(0)
    image, root = torch.randn(2, 4, 6, dtype=torch.float64), math.sqrt(eps)
    pairs = (
        (lnn.LayerNorm(6, eps), nn.LayerNorm(6, eps)),
        (lnn.LayerNorm((4, 6), eps), nn.LayerNorm([4, 6], eps)),
        (lnn.RMSNorm(6, eps), nn.RMSNorm(6, eps)),
        (lnn.GroupNorm(2, 4, eps), nn.GroupNorm(2, 4, eps)),
    )
    for ours, theirs in pairs:
        # The logarithm of eps is stored in float32.
        assert torch.allclose(ours.double()(image), root * theirs.double()(image), rtol=1e-5, atol=1e-7)


def test_the_constant_of_the_originals():
    """max|weight| / sqrt(eps), attained where all entries are equal: what the substitutes are divided by."""
    plain = nn.LayerNorm(5).double()
    with torch.no_grad():
        plain.weight.fill_(2.0)
    assert norm_at(plain, torch.ones(1, 5).double()) == pytest.approx(2 / math.sqrt(1e-5))


def test_weights_keep_their_ratios_and_get_gradients():
    module = lnn.RMSNorm(3)
    assert module.weight is not None
    with torch.no_grad():
        module.weight.copy_(torch.tensor([4.0, 2.0, -1.0]))
    found = module(torch.full((1, 3), 1e-3))
    assert torch.allclose(found / 1e-3, torch.tensor([[1.0, 0.5, -0.25]]), rtol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), module.weight)
    # Clipped at 1, the first two would have none.
    assert bool((gradient[1:] != 0).all())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_huge_tiny_and_equal_numbers(name: str, dtype: torch.dtype):
    torch.manual_seed(0)
    build, shape = CASES[name]
    module = build(1.0).to(dtype)
    for x in (1e34 * torch.randn(shape), 1e-42 * torch.randn(shape), torch.zeros(shape), 1e30 * torch.ones(shape)):
        x = x.to(dtype).requires_grad_()
        y = module(x)
        gradients = torch.autograd.grad(y.sum(), [x, *module.parameters()])
        assert bool(torch.isfinite(y).all())
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
        # No longer than sqrt(eps) times the root of the number of entries.
        assert float(y.detach().float().norm()) <= math.sqrt(x.numel()) * 1.02


def test_wrong_arguments_and_inputs():
    with pytest.raises(ArgumentError, match="3 groups of 4 channels"):
        lnn.GroupNorm(3, 4)
    with pytest.raises(ArgumentError, match="eps must be a positive number, got 0"):
        lnn.LayerNorm(4, 0.0)
    with pytest.raises(ArgumentError, match="at least one entry"):
        lnn.RMSNorm(())
    for module, shape in ((lnn.LayerNorm((2, 3)), (1, 3, 2)), (lnn.RMSNorm(3), (1, 4)), (lnn.GroupNorm(2, 4), (1, 2))):
        with pytest.raises(ShapeError, match=str(shape[-1])):
            module(torch.zeros(shape))
