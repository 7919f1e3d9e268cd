"""Every activation on every interval: slopes, values and curvature against autograd, and constants against mpmath."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.trace.nodes import Activation
from lipkit.trace.nodes.activations.exponential_linear import SELU, celu, elu
from lipkit.trace.nodes.activations.gated import GELU, HARDSWISH, swish
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.activations.periodic import COS, SIN
from lipkit.trace.nodes.activations.powers import (
    COSH,
    EXP,
    EXPM1,
    LOG,
    LOG1P,
    LOG2,
    LOG10,
    RECIPROCAL,
    RSQRT,
    SINH,
    SQRT,
    SQUARE,
    exponential,
    power,
)
from lipkit.trace.nodes.activations.rounded_kinks import round_kinks
from lipkit.trace.nodes.activations.sigmoids import (
    ASINH,
    ATAN,
    ERF,
    HARDSIGMOID,
    LOGSIGMOID,
    SIGMOID,
    SOFTSIGN,
    TANH,
    TANHSHRINK,
    softplus,
)
from lipkit.trace.nodes.pointwise import ABS, RELU, Identity, clamp, leaky_relu, softshrink

INF = torch.tensor(math.inf, dtype=torch.float64)
LINE = (-30.0, 30.0)
POSITIVE = (1e-3, 30.0)


@dataclass(frozen=True, eq=False)
class Known:
    """An activation, where it is defined, and whether its slopes on an interval are the best possible ones."""

    activation: Activation
    domain: tuple[float, float] = LINE
    tight: bool = True

    def __str__(self) -> str:
        return str(self.activation)


EVERY = [
    *map(
        Known, (SIGMOID, TANH, TANHSHRINK, LOGSIGMOID, ERF, ATAN, ASINH, SOFTSIGN, HARDSIGMOID, GELU, GELU_TANH, MISH)
    ),
    *map(Known, (swish(), swish(1.702), swish(0.05), HARDSWISH, softplus(1.0), softplus(5.0), SIN, COS, Identity())),
    *map(
        Known, (elu(), elu(1.7), elu(0.3, 2.0, 1.5), elu(-0.5), SELU, celu(), celu(0.4), EXP, EXPM1, SINH, COSH, SQUARE)
    ),
    *map(Known, (power(3.0), power(4.0), exponential(2.0), exponential(0.5), RELU, ABS, clamp(-1, 2), leaky_relu(0.1))),
    *map(Known, (leaky_relu(-2.0), clamp(0, math.inf), clamp(3, 3), softshrink(0.5), round_kinks(RELU, 0.3))),
    *(Known(a, POSITIVE) for a in (SQRT, RSQRT, RECIPROCAL, LOG, LOG2, LOG10, LOG1P, power(1.5), power(-2.0))),
    *(Known(a, (-30.0, -1e-3)) for a in (RECIPROCAL, power(-2.0), power(-3.0))),
    Known(round_kinks(ABS, 0.1)),
    Known(round_kinks(clamp(0, 6), 0.2), tight=False),
    Known(round_kinks(softshrink(0.5), 0.2), tight=False),
]
every = pytest.mark.parametrize("known", EVERY, ids=str)


def intervals(known: Known) -> tuple[Tensor, Tensor]:
    """200 intervals of all lengths inside the domain, and a grid of 401 points in each."""
    generator = torch.Generator().manual_seed(0)
    first, last = known.domain
    lengths = (last - first) * 10 ** (-4 * torch.rand(200, generator=generator, dtype=torch.float64))
    low = first + (last - first - lengths) * torch.rand(200, generator=generator, dtype=torch.float64)
    return low, low + lengths


def grid(low: Tensor, high: Tensor) -> Tensor:
    steps = torch.linspace(0, 1, 401, dtype=torch.float64)[:, None]
    # Rounding must not leave the interval.
    return torch.minimum(torch.maximum(low + (high - low) * steps, low), high)


def derivatives(activation: Activation, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = activation(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    if not first.requires_grad:
        return y.detach(), first, torch.zeros_like(first)
    (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
    return y.detach(), first.detach(), torch.zeros_like(first) if second is None else second


@every
def test_ranges_on_intervals_hold_the_derivatives(known: Known):
    low, high = intervals(known)
    x = grid(low, high)
    y, first, second = derivatives(known.activation, x)
    for found, (under, over) in (
        (y, known.activation.values(low, high)),
        (first, known.activation.slopes(low, high)),
        (second, known.activation.bends(low, high)),
    ):
        assert not (torch.isnan(under) | torch.isnan(over)).any()
        # autograd's own formulas lose some digits: 1e-12 of the size, and of 1.
        slack = 1e-12 * (1 + found.abs())
        assert (found >= under - slack).all()
        assert (found <= over + slack).all()


@pytest.mark.parametrize("known", [known for known in EVERY if known.tight], ids=str)
def test_slopes_on_intervals_are_attained(known: Known):
    low, high = intervals(known)
    x = grid(low, high)
    _, first, _ = derivatives(known.activation, x)
    # A kink inside the interval counts with both its slopes.
    kinks = [torch.full_like(low, k) for k in known.activation.kinks]
    for kink in kinks:
        for side in (-1e-9, 1e-9):
            inside = (low < kink) & (kink < high)
            near = derivatives(known.activation, torch.where(inside, (kink + side).clamp(low, high), low)[None])[1]
            first = torch.cat([first, near])
    alpha, beta = known.activation.slopes(low, high)
    # Between two of 401 points the derivative is missed by at most f'' times a step, against the grid's own range.
    step = (high - low) / 400
    under, over = known.activation.bends(low, high)
    bend = torch.maximum(under.abs(), over.abs())
    missed = torch.where(torch.isfinite(bend), bend * step, 1e-3) + 1e-12 * (1 + beta.abs() + alpha.abs())
    assert (first.amax(0) >= beta - missed).all()
    assert (first.amin(0) <= alpha + missed).all()


@every
def test_difference_quotients_lie_between_the_slopes(known: Known):
    low, high = intervals(known)
    s, t = (low + (high - low) * torch.rand(50, 200, dtype=torch.float64) for _ in range(2))
    alpha, beta = known.activation.slopes(low, high)
    rise = known.activation(s) - known.activation(t)
    slack = 1e-13 * (1 + known.activation(s).abs() + known.activation(t).abs())
    assert (rise <= torch.maximum(alpha * (s - t), beta * (s - t)) + slack).all()
    assert (rise >= torch.minimum(alpha * (s - t), beta * (s - t)) - slack).all()


@every
def test_a_wider_interval_has_a_wider_range(known: Known):
    low, high = intervals(known)
    for ask in (known.activation.slopes, known.activation.values, known.activation.bends):
        inner, outer = ask(low, high), ask(low - 1, high + 1)
        # Each end is rounded outward by a few units of its own size, so that equal ranges may differ by those.
        slack = 1e-13 * (1 + inner[0].abs() + inner[1].abs())
        slack = torch.where(torch.isfinite(slack), slack, 0.0)
        assert (outer[0] <= inner[0] + slack).all()
        assert (outer[1] >= inner[1] - slack).all()


@every
def test_a_point_has_its_own_slope(known: Known):
    low, _ = intervals(known)
    alpha, beta = known.activation.slopes(low, low)
    _, first, second = derivatives(known.activation, low)
    far = torch.stack([(low - k).abs() for k in (*known.activation.kinks, math.inf)]).amin(0) > 1e-6
    # A station within 2^-26 / 0.05 counts as inside, which widens the range by the curvature times that.
    slack = 1e-12 * (1 + first.abs()) + 1e-6 * second.abs()
    if known.tight:
        assert ((beta - alpha)[far] <= (3e-12 * (1 + first.abs()) + slack)[far]).all()
    assert ((first - alpha >= -slack) & (beta - first >= -slack))[far].all()


@pytest.mark.parametrize("activation", [swish(), GELU, GELU_TANH], ids=str)
def test_slopes_of_symmetric_gates_mirror(activation: Activation):
    # z g(z) with g(z) + g(-z) = 1 has f'(-z) = 1 - f'(z).
    low, high = intervals(Known(activation))
    alpha, beta = activation.slopes(low, high)
    left, right = activation.slopes(-high, -low)
    assert torch.allclose(alpha, 1 - right, rtol=0, atol=1e-13)
    assert torch.allclose(beta, 1 - left, rtol=0, atol=1e-13)


@settings(max_examples=8)
@given(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308))
def test_extreme_intervals_give_no_nan(first: float, last: float):
    low, high = (torch.tensor(v, dtype=torch.float64) for v in sorted((first, last)))
    for known in EVERY:
        for ask in (known.activation.slopes, known.activation.values, known.activation.bends):
            under, over = ask(low, high)
            assert under <= over


@pytest.mark.parametrize("known", [k for k in EVERY if k.domain == LINE], ids=str)
def test_half_lines_are_limits_of_intervals(known: Known):
    far = torch.tensor(300.0, dtype=torch.float64)
    at = torch.tensor(0.7, dtype=torch.float64)
    for ends, wide in (((at, INF), (at, far)), ((-INF, at), (-far, at))):
        outer, inner = known.activation.slopes(*ends), known.activation.slopes(*wide)
        assert outer[0] <= inner[0] + 1e-13
        assert outer[1] >= inner[1] - 1e-13
        if torch.isfinite(outer[1] - outer[0]):
            # At 300 every slope here has reached its limit (the slowest, of asinh and softsign, to 1/300).
            assert (outer[0] - inner[0]).abs() <= 5e-3
            assert (outer[1] - inner[1]).abs() <= 5e-3


def test_logarithms_and_roots_know_nothing_outside_their_domain():
    low, high = torch.tensor([-1.0, 0.0], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)
    for activation in (LOG, SQRT, RSQRT, power(0.7)):
        assert (torch.stack(activation.slopes(low, high)).abs().amax(0) == math.inf).all()
        assert activation.values(low, high)[1][0] == math.inf
    assert SQRT.values(low, high)[0][1] <= 0 <= SQRT.values(low, high)[0][1] + 1e-300
    # A pole inside.
    assert RECIPROCAL.slopes(low, high)[0][0] == -math.inf
