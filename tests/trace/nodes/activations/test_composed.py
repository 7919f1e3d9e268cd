"""Formulas of one variable: slopes, values and curvature against difference quotients at all scales."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bounds import DAG
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Activation, Pointwise
from lipkit.trace.nodes.activations.composed import Composed
from lipkit.trace.nodes.activations.periodic import SquaredSine


class Formula(nn.Module):
    """A model that is one formula."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x)


def xtanh_slope() -> float:
    x = torch.linspace(0, 5, 2_000_001, dtype=torch.float64)
    return float((x.tanh() + x / x.cosh() ** 2).max())


@pytest.mark.parametrize("sharp", [1.0, 1e4, 1e8, 1e16, 1e30])
@pytest.mark.parametrize("power", [True, False])
def test_bells_of_every_width_have_their_slope(sharp: float, power: bool):
    # exp(-c x^2) is steepest at 1 / sqrt(2 c), with slope sqrt(2 c / e).
    formula = Formula((lambda x: torch.exp(-sharp * x**2)) if power else (lambda x: torch.exp(-sharp * x * x)))
    bound = float(DAG()(capture(formula, torch.zeros(1, 1, dtype=torch.float64))).value)
    truth = math.sqrt(2 * sharp / math.e)
    # Pieces are 1 % of their distance from 0 wide, and the curvature is zero at the steepest point.
    assert truth * (1 - 1e-12) <= bound <= truth * 1.001


# The formula, and its largest slope: a closed form, or the largest on a fine grid.
FORMULAS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "sin^2": (lambda x: torch.sin(x) ** 2, 1.0),
    "cos cos": (lambda x: torch.cos(x) * torch.cos(x), 1.0),
    "hypotenuse": (lambda x: torch.sqrt(1 + x * x), 1.0),
    "bell": (lambda x: torch.exp(-x * x), math.sqrt(2 / math.e)),
    "x bell": (lambda x: x * torch.exp(-(x**2) / 2), 1.0),
    "witch": (lambda x: 1 / (1 + x * x), 3 * math.sqrt(3) / 8),
    "x witch": (lambda x: x / (1 + x * x), 1.0),
    "logarithm": (lambda x: torch.log(1 + x * x), 1.0),
    "x tanh": (lambda x: x * torch.tanh(x), xtanh_slope()),
    "cube of tanh": (lambda x: torch.tanh(x) ** 3, 0.75),
    "sigmoid squared": (lambda x: torch.sigmoid(3 * x - 1) ** 2, 3 * 8 / 27),
    "softplus and gate": (lambda x: functional.softplus(x) * torch.sigmoid(-x), math.nan),
    "exponential of sine": (lambda x: torch.exp(torch.sin(x)), math.nan),
}


@cache
def activation_of(name: str) -> Activation:
    network = capture(Formula(FORMULAS[name][0]), torch.randn(1, 3, dtype=torch.float64))
    (node,) = [node for node in network.nodes if not node.is_identity]
    assert isinstance(node, Pointwise)
    assert isinstance(node.activation, Composed)
    return node.activation


@pytest.mark.parametrize("name", FORMULAS)
def test_the_constant_is_the_largest_slope(name: str) -> None:
    slope = FORMULAS[name][1]
    inf = torch.tensor(math.inf, dtype=torch.float64)
    found = torch.stack(activation_of(name).slopes(-inf, inf)).abs().max()
    if math.isnan(slope):
        assert torch.isfinite(found)
    else:
        # Pieces of 1/128: the mean value form is off by their square.
        assert slope <= found <= slope * 1.001


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_slopes_values_and_bends_hold_on_intervals(name: str, scale: float) -> None:
    torch.manual_seed(0)
    formula, _ = FORMULAS[name]
    f = activation_of(name)
    ends = (scale * torch.randn(2, 10, dtype=torch.float64)).sort(0).values
    ends[1, :5] = ends[0, :5] + 1e-3 * scale
    low, high = ends
    s, t = low + (high - low) * torch.rand(2, 200, 10, dtype=torch.float64)
    t = torch.where(torch.rand_like(s) < 0.3, s + 1e-4 * (t - s), t)
    alpha, beta = f.slopes(low, high)
    under, over = f.values(low, high)
    step, moved = s - t, formula(s) - formula(t)
    # Two values, each within a few units of its size, and sums of such numbers inside.
    slack = 1e-13 * (2 + formula(s).abs() + formula(t).abs())
    assert (moved <= torch.maximum(alpha * step, beta * step) + slack).all()
    assert (moved >= torch.minimum(alpha * step, beta * step) - slack).all()
    assert (formula(s) <= over + slack).all()
    assert (formula(s) >= under - slack).all()
    bend_low, bend_high = f.bends(low, high)
    s = s.requires_grad_()
    (slope,) = torch.autograd.grad(formula(s).sum(), s, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), s)
    assert (bend <= bend_high + 1e-9).all()
    assert (bend >= bend_low - 1e-9).all()


def test_small_intervals_have_slopes_near_the_derivative() -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    for name, (formula, _) in FORMULAS.items():
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(formula(at).sum(), at)
        alpha, beta = activation_of(name).slopes(x - 1e-4, x + 1e-4)
        # The slope changes by at most the curvature, below 12 here, times the width.
        farthest = torch.maximum((beta - slope).abs(), (alpha - slope).abs())
        assert (farthest <= 12 * 2e-4).all(), name


@pytest.mark.parametrize("quarters", range(4))
def test_the_square_of_a_sine_is_exact(quarters: int) -> None:
    f = SquaredSine(quarters)
    torch.manual_seed(quarters)
    low, high = (20 * torch.randn(2, 200, dtype=torch.float64)).sort(0).values
    high = torch.where(torch.rand(200) < 0.5, low + 0.3, high)
    x = low + (high - low) * torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    quotients = (f(x)[1:] - f(x)[:-1]) / (x[1:] - x[:-1])
    for (under, over), seen, slack in ((f.slopes(low, high), quotients, 1e-11), (f.values(low, high), f(x), 1e-14)):
        assert (seen >= under - slack).all()
        assert (seen <= over + slack).all()
        # Neighbouring points of the grid are at most 0.04 apart, and slopes change by 2 at most.
        assert (seen.amin(0) <= under + 0.05).all()
        assert (seen.amax(0) >= over - 0.05).all()
