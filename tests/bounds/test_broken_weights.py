"""Weights that are NaN: every way to a constant, a certificate or a plain model refuses them in one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Ball
from lipkit import nn as lnn
from lipkit.certify import head_pairwise
from lipkit.errors import CaptureError, LipkitError, NonFiniteError

METHODS: list[Any] = [
    lnn.AOL, lnn.Bjorck, lnn.Cayley, lnn.Exponential, lnn.Frobenius, lnn.Householder, lnn.NewtonSchulz, lnn.Polar,
    lnn.QR, lnn.Rescale, lnn.Spectral,
]  # fmt: skip


def spoil(model: nn.Module, name: str) -> nn.Module:
    """NaN in the first parameter whose name ends so."""
    parameter = next(p for path, p in model.named_parameters() if path.endswith(name))
    parameter.data.view(-1)[0] = torch.nan
    return model.eval()


def image(channels: int) -> Tensor:
    return torch.randn(1, channels, 4, 4, generator=torch.Generator().manual_seed(0))


def row() -> Tensor:
    return torch.randn(1, 6, generator=torch.Generator().manual_seed(0))


def chain(kind: type[nn.Module], method: Any = lnn.Bjorck) -> nn.Module:
    return kind(lnn.Linear(6, 6, method=method()), lnn.MaxMin(), lnn.Linear(6, 3))


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "free numbers in a chain that declares": lambda: (spoil(chain(lnn.Sequential), "original"), row()),
    "bias in a chain that declares": lambda: (spoil(chain(lnn.Sequential), "bias"), row()),
    "free numbers in a plain chain": lambda: (spoil(chain(nn.Sequential), "original"), row()),
    "bias in a plain chain": lambda: (spoil(chain(nn.Sequential), "bias"), row()),
    "residual layer": lambda: (spoil(nn.Sequential(lnn.SLL(6)), "weight"), row()),
    "convolution": lambda: (spoil(nn.Sequential(lnn.Conv2d(2, 2, 3, padding=1), nn.Flatten()), "original"), image(2)),
    "weight of torch": lambda: (spoil(nn.Sequential(nn.Linear(6, 3)), "weight"), row()),
}


@pytest.mark.parametrize("name", CASES)
def test_no_constant_of_a_model_that_computes_nan(name: str):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = CASES[name]()
    ways: list[Callable[[], object]] = [
        lambda: lipkit.lipschitz(model, x),
        lambda: lipkit.lipschitz(model, x, region=Ball(x[0], 0.1)),
        lambda: head_pairwise(model, x),
        lambda: lnn.condense(model),
    ]
    for way in ways:
        with pytest.raises(LipkitError, match="NaN"):
            _ = way()
        with torch.no_grad(), pytest.raises(LipkitError, match="NaN"):
            _ = way()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_nan_in_its_free_numbers_is_refused(method: Any):
    model = spoil(chain(lnn.Sequential, method), "original")
    # A decomposition of torch refuses such numbers by itself.
    why = "declares a constant and computes NaN, because a parameter|Check the parameters for NaN and infinite numbers"
    with pytest.raises(CaptureError, match=why):
        _ = lipkit.lipschitz(model, row())
    with torch.no_grad(), pytest.raises(CaptureError, match=why):
        _ = lipkit.lipschitz(model, row())
    with pytest.raises(NonFiniteError, match=r"parameter 0.parametrizations.weight.original of the model is NaN"):
        _ = lnn.condense(model)


def test_memory_that_a_declared_module_writes_before_it_reads_is_no_broken_weight():
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made = torch.empty_like(x)
            made[:] = 2.0
            return x / made

        def declared_lipschitz(self, in_shape: tuple[int, ...]) -> lipkit.Bound:
            assert in_shape == (6,)
            return lipkit.Bound.from_value(0.5, lipkit.Kind.UPPER, "a quotient")

    assert float(lipkit.lipschitz(nn.Sequential(Writes()), row()).value) == pytest.approx(0.5)
