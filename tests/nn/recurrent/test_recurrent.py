"""Recurrent layers: constants of steps and of whole sequences, against Jacobians that gradient ascent finds."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.recurrent.steps import GatedStep
from support.jacobians import climbed, norm_at

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12


class Together(nn.Module):
    """A cell as a function of input and state side by side."""

    def __init__(self, cell: nn.Module, inputs: int) -> None:
        super().__init__()
        self.cell = cell
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x[:, : self.inputs], x[:, self.inputs :])


def drawn(*shape: int) -> list[Tensor]:
    return [size * torch.randn(1, *shape, dtype=torch.float64) for size in (0.1, 1.0, 4.0)]


CELLS = {
    "tanh": lambda: lnn.RNNCell(3, 4),
    "sorted": lambda: lnn.RNNCell(3, 4, activation=lnn.MaxMin()),
    "gated": lambda: lnn.GRUCell(3, 4),
    "gated, short": lambda: lnn.GRUCell(3, 4, length=0.05),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_step_has_constant_one_in_input_and_state_together(name: str):
    torch.manual_seed(0)
    cell = CELLS[name]().double()
    with torch.no_grad():
        cell.step.linear.bias.normal_()
    assert climbed(Together(cell, 3), [x / 20 if "short" in name else x for x in drawn(7)], steps=40) <= ROUNDING
    assert cell.gain == 1


def test_the_gate_has_constant_one_and_attains_it():
    """f(u, a, b) of one entry, on a grid that holds the corners: an open gate, a shut one, u and n far apart."""
    step = GatedStep((1, 1), 1, False, 1.0, lnn.Bjorck(), None, None).double()
    line = torch.tensor([-30.0, -3.0, -1.0, -0.5, 0.0, 0.5, 0.999, 3.0, 30.0], dtype=torch.float64)
    points = torch.cartesian_prod(line, line, line)
    slopes = torch.func.vmap(torch.func.jacrev(step.function))(points).squeeze(1).norm(dim=1).detach()
    assert float(slopes.max()) <= ROUNDING
    assert float(slopes.max()) >= 1 - 1e-9
    # Without the clip u - n has no bound, and neither has the slope.
    u, a, b = torch.tensor([30.0, 0.0, 0.0]).double()
    assert a.sigmoid() * (1 - a.sigmoid()) * (u - b.tanh()) > 7


def test_gated_steps_of_torch_have_no_constant():
    """The counter-example of the docstring: h far away is multiplied by a gate that x moves."""
    torch.manual_seed(0)
    cell = nn.LSTMCell(2, 2).double()
    x = torch.zeros(2, dtype=torch.float64)

    def state(x: Tensor, size: float) -> Tensor:
        c = torch.full((1, 2), size, dtype=torch.float64)
        return cell(x[None], (torch.zeros_like(c), c))[1][0]

    slopes = [torch.linalg.matrix_norm(torch.func.jacrev(lambda z, s=s: state(z, s))(x), 2).item() for s in (1.0, 1e4)]
    assert slopes[1] > 1e3 * slopes[0]


LAYERS = {
    "rnn": lambda: lnn.RNN(2, 3),
    "rnn of sorts": lambda: lnn.RNN(2, 4, 2, activation=lnn.MaxMin()),
    "gru": lambda: lnn.GRU(2, 3, 2, length=0.5),
    "orthogonal": lambda: lnn.OrthogonalRNN(2, 3),
    "orthogonal, stated": lambda: lnn.OrthogonalRNN(2, 3, tokens=9, activation=nn.Tanh(), method=lnn.Exponential()),
}


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_sequence_has_constant_one(name: str, tokens: int):
    torch.manual_seed(0)
    layer = LAYERS[name]().double().eval()
    assert climbed(layer, drawn(tokens, 2), steps=8) <= ROUNDING
    assert float(lipkit.lipschitz(layer, torch.zeros(1, tokens, 2).double()).value.detach()) <= ROUNDING
    plain = lnn.condense(layer)
    assert float(lipkit.lipschitz(plain, torch.zeros(1, tokens, 2).double()).value.detach()) <= ROUNDING


@pytest.mark.parametrize("name", [name for name in LAYERS if "stated" not in name])
def test_a_long_sequence(name: str):
    torch.manual_seed(0)
    layer, x = LAYERS[name]().double().eval(), torch.randn(1, 200, 2, dtype=torch.float64)
    for size in (1e-3, 1.0, 1e3):
        y = x + size * torch.randn_like(x)
        assert (layer(x) - layer(y)).norm() <= (x - y).norm() * ROUNDING


def test_states_that_are_kept_and_given_out_are_counted_at_every_step():
    """The reason why outputs of `RNN` are not its states: the last state has constant 1, all together have more."""
    cell = lnn.RNNCell(1, 1, bias=False, activation=nn.Identity()).double()
    with torch.no_grad():
        cell.step.linear.get_parameter("parametrizations.weight.original").copy_(torch.tensor([[0.3, 0.95]]))

    def states(x: Tensor) -> Tensor:
        h, found = None, []
        for token in x.unbind():
            h = cell(token[None], h)
            found.append(h)
        return torch.cat(found)

    slopes = torch.func.jacrev(states)(torch.zeros(16, 1).double()).reshape(16, 16).detach()
    assert float(slopes[-1].norm()) <= ROUNDING
    assert float(torch.linalg.matrix_norm(slopes, 2)) > 2


def test_the_sum_of_all_inputs_attains_the_constant_of_orthogonal_layers():
    for tokens in (1, 2, 7):
        layer = lnn.OrthogonalRNN(1, 1, bias=False, activation=nn.Identity()).double()
        with torch.no_grad():
            for part in (layer.input, layer.state):
                part.get_parameter("parametrizations.weight.original").fill_(1.0)
        found = norm_at(layer, torch.zeros(1, tokens, 1).double())
        # Weights and factor are made smaller by some units of float32.
        assert found == pytest.approx(1, rel=1e-5 * tokens)
        ones = torch.linalg.matrix_norm(torch.ones(tokens, tokens).double().tril(), 2)
        assert float(ones) == pytest.approx(1 / (2 * math.sin(math.pi / (4 * tokens + 2))), rel=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_huge_and_tiny_numbers(name: str):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for size in (1e34, 1e-42, 0.0):
        x = (size * torch.randn(2, 5, 2)).requires_grad_()
        y = layer(x)
        gradients = torch.autograd.grad(y.sum(), [x, *layer.parameters()], allow_unused=True)
        assert bool(torch.isfinite(y).all())
        assert all(g is None or bool(torch.isfinite(g).all()) for g in gradients)


def test_fewer_digits_have_a_constant_for_each_length_and_none_for_all():
    torch.manual_seed(0)
    layer = lnn.RNN(20, 40).to(torch.bfloat16).eval()
    with pytest.raises(UnsupportedError, match="no constant holds for every length"):
        _ = layer.gain
    short, long = (float(layer.declared_lipschitz((n, 20)).value.detach()) for n in (1, 50))
    assert 1 <= short <= long < math.inf
    with pytest.raises(UnsupportedError, match="may grow"):
        _ = lnn.OrthogonalRNN(20, 40).to(torch.bfloat16).gain


def test_an_activation_that_is_exchanged_counts():
    layer = lnn.RNN(2, 3)
    for step in layer.linear_steps:
        step.activation = nn.SELU()
    with pytest.raises(UnsupportedError, match="activation was exchanged"):
        _ = layer.gain
    assert float(layer.declared_lipschitz((3, 2)).value.detach()) > 1.7**3


def test_a_cell_follows_its_layer_of_torch_in_form():
    torch.manual_seed(0)
    cell = lnn.RNNCell(3, 4)
    x = torch.randn(5, 3)
    assert torch.equal(cell(x), cell(x, torch.zeros(5, 4)))
    assert cell(x[0]).shape == (4,)
    assert float(cell.declared_lipschitz((3,)).value.detach()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: lnn.RNN(3, 0), "sizes of at least 1"),
        (lambda: lnn.RNN(3, 2, 0), "num_layers is at least 1, got 0"),
        (lambda: lnn.RNN(3, 2, activation=nn.SELU()), "constant at most 1"),
        (lambda: lnn.GRU(3, 2, length=0.0), "length must be a positive number"),
        (lambda: lnn.OrthogonalRNN(3, 2, tokens=0), "at least 1, got 0"),
        (lambda: lnn.OrthogonalRNN(3, 2, activation=nn.SELU()), "constant at most 1"),
    ],
)
def test_wrong_arguments(build: type[nn.Module], said: str):
    with pytest.raises(ArgumentError, match=said):
        build()


@pytest.mark.parametrize("shape", [(3, 2), (1, 4, 3), (1, 0, 2), (1, 10, 2)])
def test_wrong_inputs(shape: tuple[int, ...]):
    stated = lnn.OrthogonalRNN(2, 3, tokens=9)
    with pytest.raises(ShapeError):
        stated(torch.zeros(shape))
    if shape[1:] != (10, 2):
        with pytest.raises(ShapeError):
            lnn.RNN(2, 3)(torch.zeros(shape))
    with pytest.raises(ShapeError):
        lnn.RNN(2, 3).declared_lipschitz((3,))
    with pytest.raises(ShapeError, match="batches must agree"):
        lnn.GRUCell(2, 3)(torch.zeros(4, 2), torch.zeros(5, 3))
    with pytest.raises(ShapeError, match="2 entries"):
        lnn.GRUCell(2, 3)(torch.zeros(4, 5))
