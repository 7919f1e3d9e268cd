"""Norms of windows against torch itself: LPPool and roots of sums of squares."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit.bounds import DAG
from lipkit.errors import NeedsRegion
from lipkit.trace.capture import capture
from lipkit.trace.nodes import VectorNorm
from support.networks.short_models import Model

# The model, the shape of one input, and its constant in l2: the square root of the largest overlap of windows, because
# an input that is all that its windows hold moves each of them by as much as it moves itself.
POOLS: dict[str, tuple[nn.Module, tuple[int, ...], float]] = {
    "apart": (nn.LPPool1d(2, 2), (3, 8), 1.0),
    "three windows": (nn.LPPool1d(2, 3, stride=1), (3, 8), math.sqrt(3)),
    "images": (nn.LPPool2d(2, 2), (2, 6, 6), 1.0),
    "images, four windows": (nn.LPPool2d(2, 3, stride=2), (2, 7, 7), 2.0),
    "oblong": (nn.LPPool2d(2, (1, 3), stride=(1, 2)), (2, 4, 7), math.sqrt(2)),
    "fourth powers": (nn.LPPool1d(4, 3, stride=2), (2, 9), math.sqrt(2)),
    "left over": (nn.LPPool1d(2, 3), (2, 8), 1.0),
}


@pytest.mark.parametrize("name", POOLS)
def test_the_constant_of_a_pool_is_that_of_its_overlap(name: str) -> None:
    model, shape, constant = POOLS[name]
    found = lipkit.lipschitz(model, torch.randn(1, *shape), DAG())
    # One operator of zeros and ones, whose norm is found to 1e-6.
    assert constant * (1 - 1e-12) <= float(found.value) <= constant * (1 + 1e-6)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_pools_move_no_further_than_their_constant(name: str, scale: float) -> None:
    torch.manual_seed(0)
    model, shape, _ = POOLS[name]
    network = capture(model, torch.randn(1, *shape, dtype=torch.float64))
    x = scale * torch.randn(300, *shape, dtype=torch.float64)
    # Most entries are 0: there a norm has its kink.
    x = torch.where(torch.rand_like(x) < 0.7, 0.0, x)
    y = x + scale * 10.0 ** torch.randint(-4, 1, (300, *(1,) * len(shape))) * torch.randn_like(x)
    assert torch.allclose(network(x), model(x), rtol=1e-10, atol=1e-10 * scale)
    constant = float(lipkit.lipschitz(model, torch.randn(1, *shape), DAG()).value)
    far = torch.linalg.vector_norm((model(x) - model(y)).flatten(1), dim=1)
    assert (far <= constant * torch.linalg.vector_norm((x - y).flatten(1), dim=1) * (1 + 1e-9) + 1e-13 * scale).all()


SPELLED: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "length": (lambda x: (x**2).sum(-1).sqrt(), 1.0),
    "mean of squares": (lambda x: torch.sqrt((x * x).mean((1, 2))), 1 / math.sqrt(27)),
    "first axis": (lambda x: 2 * (3 * x.square().sum(1, keepdim=True)) ** 0.5, 2 * math.sqrt(3)),
}


@pytest.mark.parametrize("name", SPELLED)
def test_roots_of_sums_of_squares_are_norms(name: str) -> None:
    formula, constant = SPELLED[name]
    model = Model(lambda _, x: formula(x))
    network = capture(model, torch.randn(1, 3, 9))
    assert [type(node) for node in network.nodes if not node.is_identity] == [VectorNorm]
    found = float(lipkit.lipschitz(model, torch.randn(1, 3, 9), DAG()).value)
    assert constant * (1 - 1e-12) <= found <= constant * (1 + 1e-6)


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: (x**2).sum(-1) ** 0.25,
        lambda x: ((x**2).sum(-1) - 1).sqrt(),
        lambda x: (x**3).sum(-1) ** (1 / 3),
        lambda x: ((x**2) @ torch.linspace(-1, 1, 9)).sqrt(),
    ],
)
def test_other_roots_stay_without_a_constant(formula: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(NeedsRegion, match="not Lipschitz"):
        lipkit.lipschitz(Model(lambda _, x: formula(x)), torch.rand(1, 3, 9) + 1)
