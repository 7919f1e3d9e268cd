"""Every activation on every interval: slopes, values and curvature against autograd, and constants against mpmath."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.trace.nodes import Activation
from lipkit.trace.nodes.exponential_linear import SELU, celu, elu
from lipkit.trace.nodes.gated import GELU, HARDSWISH, swish
from lipkit.trace.nodes.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.mish import MISH
from lipkit.trace.nodes.periodic import COS, SIN
from lipkit.trace.nodes.piecewise_linear import ABS, RELU, clamp, leaky_relu, prelu, softshrink
from lipkit.trace.nodes.pointwise import Identity
from lipkit.trace.nodes.powers import (
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
from lipkit.trace.nodes.sigmoids import (
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
    *map(Known, (leaky_relu(-2.0), clamp(0, math.inf), clamp(3, 3), softshrink(0.5), RELU.smoothed(0.3))),
    *(Known(a, POSITIVE) for a in (SQRT, RSQRT, RECIPROCAL, LOG, LOG2, LOG10, LOG1P, power(1.5), power(-2.0))),
    *(Known(a, (-30.0, -1e-3)) for a in (RECIPROCAL, power(-2.0), power(-3.0))),
    Known(ABS.smoothed(0.1)),
    Known(clamp(0, 6).smoothed(0.2), tight=False),
    Known(softshrink(0.5).smoothed(0.2), tight=False),
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


@every
def test_slopes_on_intervals_are_attained(known: Known):
    if not known.tight:
        pytest.skip("an enclosure only")
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


# The largest and the smallest slope, by mpmath at 40 digits from the definitions alone.
def _silu(x):
    return x / (1 + mpmath.exp(-x))


def _gelu(x):
    return x * mpmath.ncdf(x)


def _gelu_tanh(x):
    u = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x * (1 + mpmath.tanh(u)) / 2


def _mish(x):
    return x * mpmath.tanh(mpmath.log(1 + mpmath.exp(x)))


def extremal_slope(fn: Callable[[Any], Any], near: float) -> Any:
    with mpmath.workdps(40):
        place = mpmath.findroot(lambda x: mpmath.diff(fn, x, 2), near)
        return mpmath.diff(fn, place)


@pytest.mark.parametrize(
    ("activation", "fn", "places", "printed"),
    [
        (swish(), _silu, (-2.4, 2.4), ("-0.099839320128867", "1.099839320128867")),
        (GELU, _gelu, (-1.4, 1.4), ("-0.128904145185155", "1.128904145185155")),
        (GELU_TANH, _gelu_tanh, (-1.4, 1.4), ("-0.128993069", "1.128993068658772")),
        (MISH, _mish, (-2.2, 1.5), (None, "1.088498161251728")),
    ],
)
def test_constants_of_gates_agree_with_mpmath(activation: Activation, fn, places, printed):
    for end, place, digits in zip(activation.slopes(-INF, INF), places, printed, strict=True):
        truth = extremal_slope(fn, place)
        # The value is within 2^-49 of the truth, and 2^-49 is added to the safe side.
        assert 0 <= (end.item() - truth) * (1 if place > 0 else -1) <= 2.0**-48
        if digits is not None:
            # All printed digits, the last one rounded.
            assert abs(truth - mpmath.mpf(digits)) <= mpmath.mpf(10) ** -len(digits.partition(".")[2])


@pytest.mark.parametrize(
    ("activation", "smallest", "largest"),
    [
        (RELU, 0.0, 1.0),
        (leaky_relu(0.2), 0.2, 1.0),
        (leaky_relu(1.5), 1.0, 1.5),
        (SIGMOID, 0.0, 0.25),
        (TANH, 0.0, 1.0),
        (softplus(1.0), 0.0, 1.0),
        (softplus(7.0), 0.0, 1.0),
        (elu(1.0), 0.0, 1.0),
        (elu(0.5), 0.0, 1.0),
        (HARDSWISH, -0.5, 1.5),
        (clamp(-1, 1), 0.0, 1.0),
        (celu(0.3), 0.0, 1.0),
        (SOFTSIGN, 0.0, 1.0),
        (LOGSIGMOID, 0.0, 1.0),
        (ABS, -1.0, 1.0),
        (Identity(), 1.0, 1.0),
        (TANHSHRINK, 0.0, 1.0),
        (softshrink(0.5), 0.0, 1.0),
        (SIN, -1.0, 1.0),
        (ATAN, 0.0, 1.0),
        (ASINH, 0.0, 1.0),
        (EXP, 0.0, math.inf),
        (SQUARE, -math.inf, math.inf),
    ],
    ids=str,
)
def test_exact_constants_have_no_slack(activation: Activation, smallest: float, largest: float):
    alpha, beta = activation.slopes(-INF, INF)
    assert (alpha.item(), beta.item()) == (smallest, largest)


@pytest.mark.parametrize(
    ("activation", "truth"),
    [
        (SELU, mpmath.mpf("1.7580993408473768599402175208123")),
        (HARDSIGMOID, mpmath.mpf(1) / 6),
        (ERF, 2 / mpmath.sqrt(mpmath.pi)),
        (elu(1.5), mpmath.mpf("1.5")),
    ],
    ids=str,
)
def test_rounded_constants_are_rounded_up(activation: Activation, truth: Any):
    beta = activation.slopes(-INF, INF)[1].item()
    assert 0 <= beta - truth <= 2e-15


def test_swish_has_one_constant_whatever_its_rate():
    # f(z) = silu(beta z) / beta has the slopes of SiLU.
    rates = [swish(beta).slopes(-INF, INF) for beta in (0.01, 1.0, 1.702, 30.0)]
    assert len({(a.item(), b.item()) for a, b in rates}) == 1


@pytest.mark.parametrize("activation", [swish(), GELU, GELU_TANH], ids=str)
def test_slopes_of_symmetric_gates_mirror(activation: Activation):
    # z g(z) with g(z) + g(-z) = 1 has f'(-z) = 1 - f'(z).
    low, high = intervals(Known(activation))
    alpha, beta = activation.slopes(low, high)
    left, right = activation.slopes(-high, -low)
    assert torch.allclose(alpha, 1 - right, rtol=0, atol=1e-13)
    assert torch.allclose(beta, 1 - left, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "known", [k for k in EVERY if str(k) in ("silu", "gelu", "mish", "gelu(tanh)", "tanh", "erf")], ids=str
)
def test_ascent_on_the_slope_ends_at_the_constant(known: Known):
    # The search of the survey: gradient ascent of |f'| in float64; a lower bound that comes within 1e-6.
    x = torch.linspace(-10, 10, 256, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=3e-2)
    best = 0.0
    for _ in range(300):
        (slope,) = torch.autograd.grad(known.activation(x).sum(), x, create_graph=True)
        best = max(best, slope.abs().max().item())
        x.grad = torch.autograd.grad(-slope.abs().sum(), x)[0]
        optimizer.step()
    alpha, beta = known.activation.slopes(-INF, INF)
    constant = max(abs(alpha.item()), abs(beta.item()))
    assert constant - 1e-6 <= best <= constant


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


def test_prelu_has_a_live_slope_for_each_channel():
    weight = torch.tensor([0.25, -2.0, 1.5], requires_grad=True)
    activation = prelu(weight[:, None])
    low = torch.full((3, 2), -1.0, dtype=torch.float64)
    alpha, beta = activation.slopes(low, -low)
    assert alpha[:, 0].tolist() == [0.25, -2.0, 1.0]
    assert beta[:, 0].tolist() == [1.0, 1.0, 1.5]
    torch.maximum(alpha.abs(), beta.abs()).max().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, -1.0, 0.0] or weight.grad.abs().sum() > 0
    z = torch.randn(4, 3, 2)
    assert torch.equal(activation(z), torch.nn.functional.prelu(z, weight.detach()))


@pytest.mark.parametrize("mu", [0.05, 1.0])
def test_smoothed_relu_is_softplus(mu: float):
    z = torch.linspace(-5, 5, 401, dtype=torch.float64)
    smooth = RELU.smoothed(mu)
    assert torch.allclose(smooth(z), mu * torch.nn.functional.softplus(z / mu, threshold=1e9), rtol=0, atol=1e-14)
    assert ((smooth(z) - z.relu()) <= mu * math.log(2) * (1 + 1e-12)).all()
    assert not smooth.kinks
    # Smoothness 1 / (4 mu); convex, so curvature never negative.
    under, over = smooth.bends(-INF, INF)
    assert under == 0
    assert over.item() == pytest.approx(1 / (4 * mu), rel=1e-12)


def test_smoothed_absolute_value_is_a_hypotenuse():
    z = torch.linspace(-5, 5, 401, dtype=torch.float64)
    smooth = ABS.smoothed(0.25)
    assert torch.allclose(smooth(z), (z**2 + 0.0625).sqrt(), rtol=1e-15, atol=0)
    assert smooth.bends(-INF, INF)[1].item() == pytest.approx(4.0)


def test_kinks_and_curvature_tell_convex_from_concave():
    assert RELU.kinks == (0.0,)
    assert SELU.kinks == (0.0,)
    assert elu(1.0).kinks == () == celu(0.3).kinks == SOFTSIGN.kinks == SIGMOID.kinks
    assert HARDSWISH.kinks == (-3.0, 3.0)
    assert RELU.bends(-INF, INF) == (0, math.inf)
    assert (-1 * torch.stack(clamp(-math.inf, 1).bends(-INF, INF))).tolist() == [math.inf, 0]
    right = torch.tensor(0.5, dtype=torch.float64)
    assert [b.item() for b in RELU.bends(right, INF)] == [0, 0]
    assert softplus(1.0).bends(-INF, INF)[0] == 0
    assert LOGSIGMOID.bends(-INF, INF)[1] == 0


def test_what_cannot_be_smoothed_or_built_says_so():
    with pytest.raises(UnsupportedError, match="selu has kinks at 0"):
        SELU.smoothed(0.1)
    assert TANH.smoothed(0.1) is TANH
    with pytest.raises(ArgumentError, match="mu > 0"):
        RELU.smoothed(0.0)
    with pytest.raises(ArgumentError, match="alpha > 0"):
        celu(-1.0)
    with pytest.raises(ArgumentError, match="beta > 0"):
        softplus(0.0)
    with pytest.raises(ArgumentError, match="beta > 0"):
        swish(-1.0)
    with pytest.raises(ArgumentError, match="base > 0"):
        exponential(-2.0)
    with pytest.raises(ArgumentError, match="finite exponent"):
        power(math.inf)
