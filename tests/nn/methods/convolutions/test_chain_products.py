"""Products of projectors: symbols, derivatives of every order, what they launch, and matrices padded alike."""

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lipkit import nn as lnn
from lipkit.nn.methods import bjorck
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.convolutions.projector_chain import (
    ProjectorChain,
    _forward,  # pyright: ignore[reportPrivateUsage]
    _multiplied,  # pyright: ignore[reportPrivateUsage]
)
from support.layers.launches import Launches
from support.layers.matrix_methods import degenerate

CHAINS = {
    "3 x 3": ProjectorChain(4, 4, 4, (1, 1), (0, 1, 0, 1)),
    "5 taps": ProjectorChain(2, 3, 3, (1,), (0, 0, 0, 0)),
    "stride": ProjectorChain(4, 3, 2, (2, 1), (0, 1, 1)),
    "transposed": ProjectorChain(2, 5, 5, (1, 1), (0, 1), transposed=True),
    "one channel": ProjectorChain(1, 1, 1, (1, 1), (0, 0, 1)),
    "no factor": ProjectorChain(3, 2, 2, (2,), ()),
}
each_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def parts(chain: ProjectorChain, groups: int = 2) -> tuple[Tensor, Tensor]:
    """H and all R, of norm about one."""
    generator = torch.Generator().manual_seed(3)
    entries = math.prod(chain.window) * chain.inner
    head = torch.randn(groups, chain.rows, entries, dtype=torch.float64, generator=generator)
    count = groups * len(chain.axes)
    factors = torch.randn(count, chain.rank, chain.inner, dtype=torch.float64, generator=generator)
    return head / entries**0.5, factors / chain.inner**0.5


@each_chain
def test_the_symbol_is_the_product_of_those_of_its_factors(chain: ProjectorChain) -> None:
    head, factors = parts(chain)
    kernel = _multiplied(head, factors, chain, torch.float64)
    turns = [0.7, -2.1][: len(chain.window)]

    def at(taps: Tensor) -> Tensor:
        """The symbol of taps on the last axes, with z = exp(i t) on each axis."""
        for turn in reversed(turns):
            phases = torch.exp(1j * turn * torch.arange(taps.shape[-1], dtype=torch.float64))
            taps = (taps * phases).sum(-1)
        return taps

    order = (0, 1, 2 + len(chain.window), *range(2, 2 + len(chain.window)))
    expected = at(head.reshape(2, chain.rows, *chain.window, chain.inner).permute(order))
    one = torch.eye(chain.inner, dtype=torch.float64)
    for position, axis in enumerate(chain.axes):
        half = factors.unflatten(0, (2, len(chain.axes)))[:, position]
        projector = half.mT @ half
        projector = one - projector if chain.is_second(position) else projector
        expected = expected @ (one - projector + projector * cmath.exp(1j * turns[axis]))
    expected = expected[..., : chain.cols] * chain.room(torch.float64)
    found = at(kernel)
    torch.testing.assert_close(found.mT if chain.transposed else found, expected, rtol=1e-12, atol=1e-12)


# A warning of torch about its own forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@each_chain
def test_derivatives_of_every_order_are_those_of_the_operations(chain: ProjectorChain) -> None:
    given = parts(chain)
    generator = torch.Generator().manual_seed(4)
    directions = tuple(torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in given)
    weights = torch.randn(_multiplied(*given, chain, torch.float64).shape, dtype=torch.float64, generator=generator)

    def derivatives(function: Any) -> list[Tensor]:
        def value(head: Tensor, factors: Tensor) -> Tensor:
            return (function(head, factors, chain, torch.float64) * weights).sin().sum()

        slopes = torch.func.grad(value, (0, 1))

        def slope(head: Tensor, factors: Tensor) -> Tensor:
            return sum((a * b).sum() for a, b in zip(slopes(head, factors), directions, strict=True))  # pyright: ignore[reportReturnType]

        along, mixed = torch.func.jvp(value, given, directions)[1], torch.func.jvp(slopes, given, directions)[1]
        return [*slopes(*given), along, *torch.func.grad(slope, (0, 1))(*given), *mixed]

    found = derivatives(_multiplied)
    expected = derivatives(lambda *inputs: _forward(*inputs)[0])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradients_in_float32_are_those_in_float64() -> None:
    """Derivatives are computed in the type of the free numbers: some roundings of 6e-8 each."""
    torch.manual_seed(0)
    wide: Any = lnn.Conv2d(8, 8, 3, dtype=torch.float64)
    narrow: Any = lnn.Conv2d(8, 8, 3)
    raw = wide.parametrizations.weight.original
    with torch.no_grad():
        raw.add_(0.2 * raw.square().mean().sqrt() * torch.randn_like(raw))
        narrow.parametrizations.weight.original.copy_(raw)
        raw.copy_(narrow.parametrizations.weight.original)
    weights = torch.randn(8, 8, 3, 3, dtype=torch.float64)
    expected = torch.autograd.grad((wide.weight * weights).sum(), raw)[0]
    free = narrow.parametrizations.weight.original
    found = torch.autograd.grad((narrow.weight * weights.float()).sum(), free)[0]
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_launches() -> None:
    """A layer whose products are short takes as long as its operations need to be launched; eight together not more."""
    one: Any = lnn.Conv2d(4, 4, 3)
    with Launches() as forward:
        weight = one.weight
    out = torch.ones_like(weight)
    with Launches() as backward:
        weight.backward(out)
    assert (forward.count, backward.count) == (58, 78)
    several: Any = nn.Sequential(*(lnn.Conv2d(4, 4, 3) for _ in range(8)))
    with Launches() as forward, lnn.batched(several):
        whole = torch.stack([layer.weight for layer in several])
    out = torch.ones_like(whole)
    with Launches() as backward:
        whole.backward(out)
    # Beside what one layer launches, a few for each: seals of what is held, and gradients put in their places.
    assert forward.count < 58 + 8 * 8
    assert backward.count < 78 + 8 * 4


class Names(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_can_be_recorded(stride: int) -> None:
    """Nothing waits for numbers, and none come from Python: recorded programs of a GPU can have neither."""
    layer: Any = lnn.Conv2d(4, 8, 4, stride)
    with Names() as names:
        weight = layer.weight
        weight.sum().backward()
    assert "aten::bmm" in names.seen
    waiting = {"aten::_local_scalar_dense", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::nonzero", "aten::equal"}
    assert not names.seen & waiting


@pytest.mark.parametrize("limits", [(0, 0), (2**40, 2**40)], ids=["apart", "together"])
def test_matrices_of_several_shapes_are_those_of_each_alone(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bjorck, "_FEW_PRODUCTS", limits)
    for square in degenerate(6, 6).values():
        wide = torch.cat([square, square.mT]).float()[:, :3]
        tall = square.float()[:, :, :4].requires_grad_()
        found = Bjorck().in_float64(tall, wide)
        for one, raw in zip(found, (tall, wide), strict=True):
            expected = Bjorck().matrix(raw)
            assert one.shape == raw.shape
            assert float(torch.linalg.svdvals(one.detach()).max()) <= 1
            # Singular values that have not arrived depend on the roundings of all steps in float32.
            torch.testing.assert_close(one.float(), expected, rtol=0, atol=2e-4)
