"""The shift block: isometric at every point, with and without a method."""

import pytest
import torch

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.layers.shift import ShiftBlock


@pytest.mark.parametrize(("rank", "spatial"), [(1, (5,)), (2, (3, 4)), (3, (2, 3, 2))])
@pytest.mark.parametrize("plain", [False, True])
def test_jacobian_is_orthogonal(rank: int, spatial: tuple[int, ...], plain: bool) -> None:
    torch.manual_seed(rank)
    block = ShiftBlock(8, rank=rank, method=None) if plain else ShiftBlock(8, rank=rank)
    x = torch.randn(8, *spatial)
    found = torch.func.jacrev(block)(x).detach().double().reshape(x.numel(), x.numel())
    values = torch.linalg.svdvals(found)
    # Weights are orthogonal up to float32.
    assert float(values[0]) <= 1 + 1e-12
    assert float(values[-1]) >= 1 - 2e-5
    declared = float(block.declared_lipschitz(tuple(x.shape)).value.detach())
    assert float(values[0]) <= declared * (1 + 1e-14) <= 1 + 1e-6
    torch.testing.assert_close(block(x), block(x[None])[0])


def test_moves_an_eighth_in_each_direction() -> None:
    x = torch.arange(16.0).reshape(16, 1, 1) + torch.zeros(16, 5, 5)
    x[:, 2, 2] += 100
    block = ShiftBlock(16, method=None)
    with torch.no_grad():
        block.weight.copy_(torch.eye(16))
        moved = block(x)
    places = [tuple(int(i) for i in (plane > 50).nonzero()[0]) for plane in moved]
    assert {place: places.count(place) for place in places} == {
        (2, 2): 8,
        (3, 2): 2,
        (1, 2): 2,
        (2, 3): 2,
        (2, 1): 2,
    }
    torch.testing.assert_close(moved.norm(), x.norm())


@pytest.mark.compile
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the single pass is for CUDA")
@pytest.mark.parametrize("shape", [(3, 24, 5), (4, 1024, 16, 16), (2, 40, 1, 2), (2, 8, 3, 4, 2)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_pass_is_the_same_as_many(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rank = len(shape) - 2
    block = ShiftBlock(shape[1], method=None, rank=rank, device=torch.device("cuda"), dtype=dtype)
    with torch.no_grad():
        # Products without rounding, so that every difference is one of places; whole numbers, so that there are ties.
        block.weight.copy_(torch.eye(block.channels))
    x = torch.randn(shape, device="cuda").mul(2).round().to(dtype).requires_grad_()
    g = torch.randn(shape, device="cuda").to(dtype)
    found = torch.compile(block, fullgraph=True)(x)
    torch.testing.assert_close(found, block(x), rtol=0, atol=0)
    expected = torch.autograd.grad(block(x), x, g)
    torch.testing.assert_close(torch.autograd.grad(found, x, g), expected, rtol=0, atol=0)


def test_a_plain_weight_is_proven_as_it_is() -> None:
    block = ShiftBlock(8, method=None)
    assert block.gain <= 1 + 1e-6
    with torch.no_grad():
        block.weight.mul_(1.5)
    exact = float(torch.linalg.matrix_norm(block.weight.detach().double(), 2))
    assert exact <= block.gain <= exact * (1 + 1e-5)


def test_trains_in_every_type_and_condenses() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        block = ShiftBlock(8, dtype=dtype)
        x = torch.randn(2, 8, 3, 3, dtype=dtype)
        block(x).square().sum().backward()
        assert all(p.grad is not None for p in block.parameters())
    block = ShiftBlock(8)
    x = torch.randn(2, 8, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(block(x).float(), block(x).float())
    torch.testing.assert_close(lnn.condense(block)(x), block(x))


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="multiple of 8"):
        ShiftBlock(12)
    with pytest.raises(ArgumentError, match="rank"):
        ShiftBlock(8, rank=4)
    with pytest.raises(ShapeError, match="8 channels"):
        ShiftBlock(8)(torch.zeros(1, 4, 3, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a GPU")
@pytest.mark.parametrize(
    ("rank", "shape"), [(1, (3, 5, 16)), (2, (7, 5, 3, 24)), (2, (9, 8, 8, 512)), (3, (2, 3, 4, 5, 40))]
)
def test_the_kernel_is_torchs_operations_bit_for_bit(rank: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block = ShiftBlock(shape[-1], rank=rank, method=None, device=torch.device("cuda"))
    # Few different values, so that there are ties.
    x = torch.randint(-3, 4, shape, device="cuda").float().movedim(-1, 1).requires_grad_()
    with torch.no_grad():
        block.weight.copy_(torch.eye(shape[-1]))
    weights = torch.randn_like(x)
    ends = []
    for run in (block, torch.compile(block)):
        found = run(x)
        ends.append((found.detach(), *torch.autograd.grad((found * weights).sum(), x)))
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)
