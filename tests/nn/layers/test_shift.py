"""The shift block: isometric at every point, with and without a method."""

import pytest
import torch

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.layers.shift import ShiftBlock
from support.layers.examples import QUIET
from support.programs.run import PROGRAMS, run_program


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
@pytest.mark.process
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is for CUDA")
def test_the_kernel_is_torchs_operations_bit_for_bit() -> None:
    # Without shape checks, which compilation does not see through.
    found = run_program(PROGRAMS / "shift_program.py", [], variables=QUIET)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]


def test_a_plain_weight_is_proven_as_it_is() -> None:
    block = ShiftBlock(8, method=None)
    assert float(block.declared_lipschitz((8, 3, 3)).value.detach()) <= 1 + 1e-6
    with torch.no_grad():
        block.weight.mul_(1.5)
    exact = float(torch.linalg.matrix_norm(block.weight.detach().double(), 2))
    declared = float(block.declared_lipschitz((8, 3, 3)).value.detach())
    assert exact <= declared <= exact * (1 + 1e-5)


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
