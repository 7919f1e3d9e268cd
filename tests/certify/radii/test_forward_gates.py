"""The rounding error of the logits of recurrent networks, against arithmetic with fifty digits."""

from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import network_of
from lipkit.bounds.local.whole_space import know_whole_space
from lipkit.certify import Forward, accuracy, head_pairwise
from lipkit.certify.radii.forward import _WIDENING
from lipkit.errors import NeedsRegion
from lipkit.trace.nodes import Interpolation, Product

HIDDEN = 3


class Reader(nn.Module):
    """A recurrent layer, and a head that reads its last state."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], scale: float) -> None:
        super().__init__()
        self.cell, self.head = kind(2, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 2)
        with torch.no_grad():
            for numbers in self.parameters():
                numbers.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def affine(weight: Tensor, bias: Tensor, x: list[Any]) -> list[Any]:
    rows = zip(weight.double().tolist(), bias.double().tolist(), strict=True)
    return [mpmath.fsum([mpmath.mpf(b), *(mpmath.mpf(w) * v for w, v in zip(row, x, strict=True))]) for row, b in rows]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def exact_outputs(model: Reader, x: Tensor) -> list[Any]:
    """The equations of torch's documentation of nn.LSTM and nn.GRU."""
    cell = model.cell
    state = [mpmath.mpf(0)] * HIDDEN
    memory = list(state)
    for step in x.double().tolist():
        seen = affine(
            cell.get_parameter("weight_ih_l0"), cell.get_parameter("bias_ih_l0"), [mpmath.mpf(v) for v in step]
        )
        kept = affine(cell.get_parameter("weight_hh_l0"), cell.get_parameter("bias_hh_l0"), state)
        for i in range(HIDDEN):
            a, b = seen[i::HIDDEN], kept[i::HIDDEN]
            if isinstance(cell, nn.LSTM):
                enter, forget, leave = (sigmoid(a[n] + b[n]) for n in (0, 1, 3))
                memory[i] = forget * memory[i] + enter * mpmath.tanh(a[2] + b[2])
                state[i] = leave * mpmath.tanh(memory[i])
            else:
                reset, update = (sigmoid(a[n] + b[n]) for n in (0, 1))
                state[i] = (1 - update) * mpmath.tanh(a[2] + reset * b[2]) + update * state[i]
    return affine(model.head.weight, model.head.bias, state)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_error_covers_exact_gates(kind: type[nn.LSTM] | type[nn.GRU], scale: float) -> None:
    torch.manual_seed(0)
    model, x = Reader(kind, scale).eval(), 2 * torch.randn(6, 3, 2)
    found = Forward(model, x[:1])(x)
    with mpmath.workdps(50):
        for point, value, error in zip(x, found.value.tolist(), found.error.tolist(), strict=True):
            for computed, truth in zip(value, exact_outputs(model, point), strict=True):
                assert abs(mpmath.mpf(computed) - truth) <= error
    # Useful too. Weights of norm about 10 multiply an error by some hundred in each of three steps.
    assert float(found.error.max()) < (1e-9 if scale == 1 else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_are_certified(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(0)
    model, x = Reader(kind, 1.0).eval(), torch.randn(6, 3, 2)
    found = accuracy(model, [(x, model(x).argmax(1))], head_pairwise(model, x[:1], DAG()), eps=[1e-4])
    assert found.overall.certified[0].count == 6


class Unbounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * x * x


def test_products_of_unbounded_factors_are_refused() -> None:
    with pytest.raises(NeedsRegion):
        Forward(Unbounded(), torch.zeros(1, 2))


@pytest.mark.parametrize("kind", [Product, Interpolation])
def test_constants_of_gates_hold_beyond_their_ranges(kind: type[Product] | type[Interpolation]) -> None:
    torch.manual_seed(0)
    network = network_of(Gate(kind is Product), torch.zeros(1, 3))
    (node,) = (node for node in know_whole_space(network.to(torch.float64)).nodes if isinstance(node, kind))
    constant = float(node.log_constant(2.0).exp())
    # True values lie in the ranges of tanh and sigmoid, computed ones are off by `far`.
    true = torch.rand(4000, *node.shape, dtype=torch.float64)
    moves = torch.randn_like(true)
    for far in (1e-3, 0.1, 1.0):
        moved = true + far * moves / moves.flatten(1).norm(dim=1)[:, None]
        change = (node(moved) - node(true)).flatten(1).norm(dim=1).max().item()
        assert change <= (constant + _WIDENING * far) * far
    # A corner of the ranges, moved outwards by twice its length: the constant alone does not hold there.
    signs = torch.ones(2, 3) if kind is Product else torch.tensor([[1.0], [-1.0], [1.0]]).expand(3, 3)
    corner = signs.double().reshape(1, *node.shape)
    far = 2 * corner.norm().item()
    change = (node(3 * corner) - node(corner)).norm().item()
    assert constant * far < change <= (constant + _WIDENING * far) * far


class Gate(nn.Module):
    """A product of bounded values, or a mean of them with a weight in [0, 1]."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.tanh(), (2 * x.roll(1, -1)).sin()
        return a * b if self.product else a + x.sigmoid() * (b - a)
