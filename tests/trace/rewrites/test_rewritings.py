"""Layers that are spelled out twice, or nearly: what is recognised is the same function, in every combination."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import capture
from lipkit.bounds import DAG
from lipkit.errors import NeedsRegion
from lipkit.trace.capture import have_equal_values, merge_known_layers


class Spelled(nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def twice(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: fn(fn(x))


def halves(x: Tensor) -> Tensor:
    a, b = x[:, :2], x[:, 2:]
    return (a + b - b) * torch.sigmoid(a + 5 * b)


def extremes(x: Tensor) -> Tensor:
    y = x.topk(3, 1).values
    return torch.cat([y.amax(1, True), y.amin(1, True), x.amin(1, True)], 1)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "a scaled gate, then a gate": lambda x: (y := 3 * x * torch.sigmoid(x)) * torch.sigmoid(y),
    "hard swish without its sixth, twice": twice(lambda x: x * functional.relu6(x + 3)),
    "gelu without its half, twice": twice(lambda x: x * (1 + torch.erf(x / 2**0.5))),
    "lengths, twice": twice(lambda x: x * torch.rsqrt(x.square().sum(1, keepdim=True) + 0.1)),
    "the norm of other entries": lambda x: x / x[:, [0, 0, 1, 2]].norm(dim=1, keepdim=True).clamp(min=1e-2),
    "the norm of some entries": lambda x: (
        x / functional.pad(x[:, 1:], (1, 0)).norm(dim=1, keepdim=True).clamp(min=1e-2)
    ),
    "a sum that cancels": halves,
    "extremes of extremes": extremes,
}


@pytest.mark.parametrize("name", CASES)
def test_the_function_stays_the_same(name: str):
    model = Spelled(CASES[name])
    x = torch.randn(64, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    network = capture(model, x[:1])
    # The same operations in float64, in another order.
    torch.testing.assert_close(network(x), model(x), rtol=1e-9, atol=1e-12)
    # What is certified is not below a difference quotient.
    y = x + 1e-3 * torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    quotients = (model(x) - model(y)).norm(dim=1) / (x - y).norm(dim=1)
    try:
        bound = DAG()(network)
    except NeedsRegion:
        return
    assert bound.value >= quotients.max()


def test_normalised_along_two_axes_in_turn():
    model = Spelled(lambda x: functional.normalize(functional.normalize(x, dim=1), dim=2))
    x = torch.randn(5, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(capture(model, x)(x), model(x), rtol=1e-9, atol=1e-12)


def test_a_rewriting_is_compared_with_what_was_traced():
    plain = capture(Spelled(torch.relu), torch.randn(1, 3))
    other = capture(Spelled(lambda x: torch.relu(2 * x)), torch.randn(1, 3))
    assert have_equal_values(plain, plain)
    assert not have_equal_values(plain, other)
    assert merge_known_layers(plain) is plain
