"""Held weights are those of the parameters they were computed from, in evaluation, in captures and in certificates."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import network_of
from lipkit.certify import accuracy
from lipkit.nn.core.unchanged_bits import checksum
from lipkit.trace.capture import capture


class Difference(nn.Module):
    """One layer used with two sets of free numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = lnn.Linear(6, 3)
        self.second = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        other: dict[str, Tensor] = {"parametrizations.weight.original": self.second}
        return self.body(x) - functional_call(self.body, other, (x,))


def _twice() -> nn.Module:
    """One module that makes the weights of two layers."""
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    made = lnn.Linear(6, 6)
    constraint = made.get_submodule("parametrizations.weight.0")
    for layer in (first, second):
        parametrize.register_parametrization(layer, "weight", constraint)
    return nn.Sequential(first, nn.ReLU(), second)


@pytest.mark.parametrize("build", [Difference, _twice])
def test_other_parameters_are_not_given_what_is_held(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(64, 6)
    with torch.no_grad():
        plain = model(x)
        with lnn.frozen(model):
            for _ in range(2):
                # Batches are multiplied alike, so this is equality to the bit.
                assert torch.equal(model(x), plain)
        torch.testing.assert_close(network_of(model, x)(x), plain, rtol=1e-5, atol=1e-6)  # roundings of float32
    found = accuracy(model, [(x, plain.argmax(1))], lipkit.lipschitz(model, x[:1], DAG()), [1e-3])
    assert found.overall.clean.count == 64


@pytest.mark.parametrize(
    "method",
    [lnn.Bjorck(), lnn.Cayley(), lnn.Exponential(), lnn.Householder(), lnn.QR(), lnn.NewtonSchulz(), lnn.AOL()],
    ids=str,
)
@pytest.mark.parametrize("grad", [True, False])
def test_captured_weights_are_those_that_the_model_multiplies_with(method: lnn.WeightMethod, grad: bool) -> None:
    torch.manual_seed(0)
    layer = lnn.Linear(40, 24, method=method, bias=False)
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original").add_(0.1 * torch.randn(24, 40))
    with torch.set_grad_enabled(grad):
        network = network_of(nn.Sequential(layer), torch.zeros(1, 40))
    (weight,) = [t for op in network.blocks.values() for t in op.tensors() if t.shape == (24, 40)]
    assert torch.equal(weight.detach(), layer.weight.detach())


def test_a_bound_found_with_gradients_is_not_disproved() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(lnn.Linear(72, 10)), torch.randn(32, 72)
    accuracy(model, [(x, torch.zeros(32, dtype=torch.long))], lipkit.pairwise(model, x[:1]), [0.1])


def test_what_is_read_with_gradients_keeps_them() -> None:
    layer = lnn.Linear(5, 4)
    bound = DAG()(capture(nn.Sequential(nn.Linear(5, 5), layer), torch.zeros(1, 5)))
    assert bound.value.requires_grad


BLOCKS = pytest.mark.parametrize("block", [lnn.frozen, lnn.batched], ids=["frozen", "batched"])
WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda raw: raw.add_(0.3),
    "through .data": lambda raw: raw.data.mul_(-1.0),
    "one bit": lambda raw: raw.data.view(torch.int32)[2, 1].bitwise_xor_(1 << 22),
}


@BLOCKS
@pytest.mark.parametrize("write", WRITES)
def test_changed_numbers_are_noticed_at_use(block: Any, write: str) -> None:
    torch.manual_seed(0)
    layer, x = lnn.Linear(8, 8, bias=False), torch.randn(4, 8)
    raw = layer.get_parameter("parametrizations.weight.original")
    before = raw.detach().clone()
    with torch.no_grad(), block(layer):
        first = layer(x)
        WRITES[write](raw)
        changed = layer(x)
        expected = x @ layer.method(raw.detach()[None], layer.geometry)[0].mT
        raw.copy_(before)
        assert torch.equal(layer(x), first)
    torch.testing.assert_close(changed, expected, rtol=1e-5, atol=1e-6)  # roundings of float32
    assert not torch.allclose(changed, first, atol=1e-4)


@BLOCKS
def test_other_threads_compute_their_own(block: Any) -> None:
    layer, x = lnn.Linear(8, 8), torch.randn(4, 8)
    constraint: Any = layer.get_submodule("parametrizations.weight.0")
    calls: list[int] = []
    compute = constraint.compute

    def counted(*parameters: Tensor) -> Tensor:
        calls.append(threading.get_ident())
        return compute(*parameters)

    constraint.compute = counted
    with block(layer):
        layer(x)
        calls.clear()
        layer(x)
        assert calls == []
        other = threading.Thread(target=lambda: layer(x))
        other.start()
        other.join()
    assert len(calls) == 1
    assert calls != [threading.get_ident()]


@BLOCKS
def test_nothing_is_held_after_a_block(block: Any) -> None:
    layer, x = lnn.Linear(8, 8), torch.randn(4, 8)
    constraint: Any = layer.get_submodule("parametrizations.weight.0")
    with block(layer):
        layer(x)
        assert constraint.holds
    assert not constraint.holds
    # Gradients reach the free numbers again, which a held result would keep from them.
    layer(x).sum().backward()
    assert layer.get_parameter("parametrizations.weight.original").grad is not None


def test_blocks_of_two_kinds_may_be_nested() -> None:
    layer, x = lnn.Linear(8, 8), torch.randn(4, 8)
    plain = layer(x)
    with lnn.batched(layer), lnn.frozen(layer):
        assert torch.equal(layer(x), plain)
    with lnn.frozen(layer):
        layer(x)
        with lnn.batched(layer):
            assert layer(x).requires_grad
    assert torch.equal(layer(x), plain)


@pytest.mark.parametrize(
    ("dtype", "count"), [(torch.float32, 9001), (torch.float64, 5000), (torch.bfloat16, 7), (torch.float32, 3)]
)
def test_checksums_see_every_entry_and_its_place(dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(count).to(dtype)
    places = range(1, count, max(1, count // 50))
    # Signs are the highest bits, where products that wrap around have least to say; of two and of all entries too.
    changed = [numbers, -numbers, *(numbers.roll(place) for place in places)]
    for place in places:
        for last in (place, place - 1):
            other = numbers.clone()
            other[last : place + 1] *= -1
            changed.append(other)
    assert len({checksum(one) for one in changed}) == len(changed)


@pytest.mark.parametrize("used_before", [False, True])
def test_transforms_within_a_block_compute_their_weights(used_before: bool) -> None:
    """The bits of their stand-ins cannot be compared, so nothing is held there."""
    layer = lnn.Linear(4, 3).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = layer.weight.detach().expand(5, -1, -1)

    def inside(z: Tensor) -> Tensor:
        with lnn.frozen(layer):
            return layer(z)

    with lnn.frozen(layer):
        if used_before:
            layer(x)
        torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(layer))(x).detach(), expected)
        torch.testing.assert_close(layer(x), torch.func.vmap(layer)(x))
        free = dict(layer.named_parameters())
        gradients = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())(free)
    # Free numbers that are an argument of what is differentiated have a gradient, in a block too.
    layer(x).sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(gradients[name].detach(), p.grad)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(inside))(x).detach(), expected)
