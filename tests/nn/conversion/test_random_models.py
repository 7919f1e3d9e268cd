"""Twins of random models: the promised constant against dense Jacobians, and a bound read from plain weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit import bounds
from lipkit import nn as lnn
from support.jacobians import steepest

WIDTH, CHANNELS, SIZE = 4, 2, 4


class Call(nn.Module):
    """A function that fx sees."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, *parts: nn.Module, sign: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*parts)
        self.sign = sign

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.sign > 0 else self.branch(x) - 2 * x


class Joined(nn.Module):
    """Two branches side by side, brought back to the width by a layer."""

    def __init__(self, back: nn.Module, *parts: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*parts)
        self.back = back

    def forward(self, x: Tensor) -> Tensor:
        return self.back(torch.cat((self.branch(x), x), 1))


VECTORS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "softmax": lambda: nn.Softmax(1),
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "grouped": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2, bias=False),
    "down and up": lambda: nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 2, 2), nn.Upsample(scale_factor=2)),
    "pooled": lambda: nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
}
SHARED: dict[str, Callable[[], nn.Module]] = {
    # In place it would change the input of a residual sum, which is refused.
    "relu": nn.ReLU,
    "functional": lambda: Call(lambda x: functional.leaky_relu(x, 0.2)),
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
    "dropout": nn.Dropout,
    "abs": lambda: Call(abs),
    "clamp": lambda: Call(lambda x: x.clamp(-1, 2)),
    "factor": lambda: Call(lambda x: 3 - x / -5),
    "prelu": nn.PReLU,
}


def models(parts: dict[str, Callable[[], nn.Module]], back: Callable[[], nn.Module]) -> st.SearchStrategy[nn.Module]:
    """Chains of these parts with residual sums and concatenations, up to two inside each other."""
    leaf = st.sampled_from(sorted(parts.items())).map(lambda item: item[1]())

    def nested(inner: st.SearchStrategy[nn.Module]) -> st.SearchStrategy[nn.Module]:
        some = st.lists(inner, min_size=1, max_size=3)
        sums = st.builds(lambda inside, sign: Residual(*inside, sign=sign), some, st.sampled_from((-1, 1)))
        return sums | some.map(lambda inside: Joined(back(), *inside))

    block = leaf | nested(leaf | nested(leaf))
    return st.lists(block, min_size=1, max_size=4).map(lambda inside: nn.Sequential(*inside))


def check(model: nn.Module, shape: tuple[int, ...], K: float, start: lnn.ConversionStart) -> None:
    twin, report = lnn.lipschitzify(model, K, start=start)
    assert report.promised
    # Weights and statistics as after some training.
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    twin.train()(torch.randn(6, *shape[1:]))
    twin = twin.eval().requires_grad_(False)
    x = torch.zeros(shape)
    assert float(lipkit.lipschitz(twin, x).value) <= K * (1 + 1e-9)
    if len(shape) == 2 and not any(isinstance(part, lnn.Concat) for part in twin.modules()):
        # Layers without their declarations: norms of stored weights, up to their proofs' slack. Behind a concatenation
        # the fold adds the norms of the parts of a layer, up to sqrt(2) times its norm, and says less than the theorem.
        # On images it takes minutes.
        plain = lnn.condense(twin)
        assert float(lipkit.lipschitz(plain, x, bounds.DAG()).value) <= K * (1 + 1e-6)
    # Dense decompositions in float64 are off by some units of 2^-53.
    assert steepest(twin.double(), shape, points=6) <= K * (1 + 1e-12)


STARTS = st.sampled_from(list(lnn.ConversionStart))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    models(VECTORS | SHARED, lambda: nn.Linear(2 * WIDTH, WIDTH)),
    st.sampled_from((0.3, 1.0, 7.0)),
    STARTS,
    st.integers(0, 9),
)
def test_twins_of_random_models_of_vectors(model: nn.Module, K: float, start: Any, seed: int):
    torch.manual_seed(seed)
    check(model, (1, WIDTH), K, start)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    models(IMAGES | SHARED, lambda: nn.Conv2d(2 * CHANNELS, CHANNELS, 1)),
    st.sampled_from((0.3, 1.0)),
    STARTS,
    st.integers(0, 9),
)
def test_twins_of_random_models_of_images(model: nn.Module, K: float, start: Any, seed: int):
    torch.manual_seed(seed)
    check(model, (1, CHANNELS, SIZE, SIZE), K, start)
