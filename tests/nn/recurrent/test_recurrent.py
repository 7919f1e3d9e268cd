"""Recurrent layers: constants of steps and of whole sequences, against Jacobians that gradient ascent finds."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.recurrent.steps import GatedStep
from support.jacobians import climbed, norm_at
from support.proven import proven

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
    "orthogonal, two layers": lambda: lnn.OrthogonalRNN(2, 3, 2),
    "orthogonal, stated": lambda: lnn.OrthogonalRNN(2, 3, tokens=9, activation=nn.Tanh(), method=lnn.Exponential()),
}


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_sequence_has_constant_one(name: str, tokens: int):
    torch.manual_seed(0)
    layer = LAYERS[name]().double().eval()
    assert climbed(layer, drawn(tokens, 2), steps=8) <= ROUNDING
    assert proven(layer, torch.zeros(1, tokens, 2).double()) <= ROUNDING
    plain = lnn.condense(layer)
    assert proven(plain, torch.zeros(1, tokens, 2).double()) <= ROUNDING


@pytest.mark.parametrize("name", [name for name in LAYERS if "stated" not in name])
def test_a_long_sequence(name: str):
    torch.manual_seed(0)
    layer, x = LAYERS[name]().double().eval(), torch.randn(1, 200, 2, dtype=torch.float64)
    for size in (1e-3, 1.0, 1e3):
        y = x + size * torch.randn_like(x)
        assert (layer(x) - layer(y)).norm() <= (x - y).norm() * ROUNDING


class Called(nn.Module):
    """A cell that takes one input, in a place of its own."""

    def __init__(self, cell: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.cell, self.call = cell, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.cell, x)


@pytest.mark.parametrize("build", [lnn.RNNCell, lnn.GRUCell, lnn.OrthogonalRNNCell])
def test_a_cell_is_bounded_wherever_its_one_input_goes(build: Callable[[int, int], nn.Module]):
    """As input, as state, and as both, where a sum of two maps of norm 1/sqrt(2) or 1 is as large as it can be."""
    torch.manual_seed(0)
    cell, zero = build(3, 3).double(), torch.zeros(1, 3).double()
    calls = (lambda f, x: f(x), lambda f, x: f(zero.expand_as(x), x), lambda f, x: f(x, x))
    if isinstance(cell, lnn.RNNCell):
        cell.step.activation = nn.Identity()
        with torch.no_grad():
            cell.step.linear.weight = torch.eye(3).repeat(1, 2).double() / math.sqrt(2)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(cell, lnn.OrthogonalRNNCell):
        cell.step.activation = nn.Identity()
        with torch.no_grad():
            cell.step.input.weight = cell.step.state.weight = torch.eye(3).double()  # pyright: ignore[reportAttributeAccessIssue]
    joint = 2.0 if isinstance(cell, lnn.OrthogonalRNNCell) else math.sqrt(2)
    for call, most in zip(calls, (joint / math.sqrt(2), joint / math.sqrt(2), joint), strict=True):
        model = Called(cell, call).eval()
        bound = float(lipkit.lipschitz(model, zero, lipkit.bounds.DAG()).value.detach())
        assert climbed(model, drawn(3), steps=10) <= bound * ROUNDING
        # The step knows no more than the norm of both parts together.
        assert bound <= max(most, math.sqrt(2) * (joint / math.sqrt(2))) * (1 + 1e-6)
    if not isinstance(cell, lnn.GRUCell):
        # Weights are smaller than one by some units of float32.
        assert norm_at(Called(cell, calls[2]).eval(), zero) == pytest.approx(joint, rel=1e-5)


def test_an_orthogonal_cell_has_constant_root_two_in_input_and_state_together():
    torch.manual_seed(0)
    for cell in (lnn.OrthogonalRNNCell(3, 4), lnn.OrthogonalRNNCell(5, 3, activation=lnn.FullSort())):
        both = Together(cell.double(), cell.input_size)
        found = climbed(both, drawn(cell.input_size + cell.hidden_size), steps=10)
        for stated in (cell.gain, float(cell.step.declared_lipschitz((sum(cell.step.sizes),)).value.detach())):
            # Attained, up to the units of float32 by which weights are made smaller.
            assert found <= stated * ROUNDING
            assert found == pytest.approx(stated, rel=1e-5)
        assert cell.gain == pytest.approx(math.sqrt(2), rel=1e-5)


def test_an_orthogonal_cell_makes_the_states_of_its_layer_and_has_its_constant():
    tokens = 6
    torch.manual_seed(0)
    layer, cell = lnn.OrthogonalRNN(2, 3, tokens=9).double().eval(), lnn.OrthogonalRNNCell(2, 3).double().eval()
    cell.step.load_state_dict(layer.orthogonal_steps[0].state_dict())

    def states(x: Tensor) -> Tensor:
        h, found = None, []
        for token in x.unbind(1):
            h = cell(token, h)
            found.append(h)
        return torch.stack(found, 1)

    x = torch.randn(2, tokens, 2).double()
    torch.testing.assert_close(states(x), layer(x) / (2 * math.sin(math.pi / 38)), rtol=1e-6, atol=1e-9)
    slopes = torch.func.jacrev(lambda z: states(z[None])[0])(x[0]).reshape(3 * tokens, -1).detach()
    assert float(torch.linalg.matrix_norm(slopes, 2)) <= 1 / (2 * math.sin(math.pi / (4 * tokens + 2))) * ROUNDING
    # All inputs enter the last state by isometries, so each counts in full.
    last = float(torch.linalg.matrix_norm(slopes[-3:], 2))
    assert 1.2 < last <= math.sqrt(tokens) * ROUNDING


def test_layers_upon_layers_are_layers_in_a_row():
    torch.manual_seed(0)
    deep = lnn.OrthogonalRNN(2, 3, 2, tokens=7)
    row = [lnn.OrthogonalRNN(2, 3, tokens=7), lnn.OrthogonalRNN(3, 3, tokens=7)]
    for step, layer in zip(deep.orthogonal_steps, row, strict=True):
        layer.orthogonal_steps[0].load_state_dict(step.state_dict())
    x = torch.randn(2, 5, 2)
    torch.testing.assert_close(deep(x), row[1](row[0](x)))
    for step in deep.orthogonal_steps:
        step.activation = nn.SELU()
    # The slope of SELU at zero from the right is 1.0507 * 1.67326, once for each token and layer.
    assert float(deep.declared_lipschitz((3, 2)).value.detach()) == pytest.approx(1.758099340847376**6, rel=1e-4)


def test_states_that_are_kept_and_given_out_are_counted_at_every_step():
    """The reason why outputs of `RNN` are not its states: the last state has constant 1, all together have more."""
    cell = lnn.RNNCell(1, 1, bias=False, activation=nn.Identity()).double()
    with torch.no_grad():
        cell.get_parameter("step.linear.parametrizations.weight.original").copy_(torch.tensor([[0.3, 0.95]]))

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
            for part in (layer.orthogonal_steps[0].input, layer.orthogonal_steps[0].state):
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
    assert float(cell.step.declared_lipschitz((7,)).value.detach()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: lnn.RNN(3, 0), "sizes of at least 1"),
        (lambda: lnn.RNN(3, 2, 0), "num_layers is at least 1, got 0"),
        (lambda: lnn.RNN(3, 2, activation=nn.SELU()), "constant at most 1"),
        (lambda: lnn.GRU(3, 2, length=0.0), "length must be a positive number"),
        (lambda: lnn.OrthogonalRNN(3, 2, tokens=0), "at least 1, got 0"),
        (lambda: lnn.OrthogonalRNN(3, 2, activation=nn.SELU()), "constant at most 1"),
        (lambda: lnn.OrthogonalRNN(3, 2, 0), "num_layers is at least 1, got 0"),
        (lambda: lnn.OrthogonalRNNCell(3, 2, activation=nn.SELU()), "constant at most 1"),
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
    for cell in (lnn.RNNCell(2, 3), lnn.GRUCell(2, 3), lnn.OrthogonalRNNCell(2, 3)):
        with pytest.raises(ShapeError, match="2 entries"):
            cell(torch.zeros(4, 5))
        with pytest.raises(ShapeError, match="batches must agree"):
            cell(torch.zeros(4, 2), torch.zeros(4, 2))
        with pytest.raises(ShapeError, match=r"takes \(5,\) entries"):
            cell.step.declared_lipschitz((2,))
