"""Models of a few lines for the tests of `capture`, and what it means that a network is the model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lipkit.linops import Compose, LinearOperator
from lipkit.trace.network import Network


class Model(nn.Module):
    """A function of an input, with parts it may use."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *x: Any, **named: Any) -> Any:
        return self.run(self, *x, **named)


def vector(size: int = 6, batch: int = 2) -> Tensor:
    return torch.randn(batch, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def model(run: Callable[..., Any], **parts: nn.Module) -> Any:
    return Model(run, **parts).double().eval()


def linear(inputs: int = 6, outputs: int = 6) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Linear(inputs, outputs)


def agrees(network: Network, module: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        expected = module(x.clone())
    # The same float64 operations in another order: a few units in the last place of numbers of size 10.
    assert torch.allclose(network(x).reshape(expected.shape), expected, rtol=0, atol=1e-12)


def parts_of(op: LinearOperator) -> list[LinearOperator]:
    return parts_of(op.outer) + parts_of(op.inner) if isinstance(op, Compose) else [op]
