"""Constants of activations against mpmath and gradient ascent; live slopes, kinks, curvature and smoothing."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from lipkit.errors import ArgumentError
from lipkit.trace.nodes import Activation
from lipkit.trace.nodes.activations.exponential_linear import SELU, celu, elu
from lipkit.trace.nodes.activations.gated import GELU, HARDSWISH, swish
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.activations.periodic import SIN
from lipkit.trace.nodes.activations.powers import EXP, SQUARE, exponential, power
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
from lipkit.trace.nodes.pointwise import ABS, RELU, Identity, clamp, leaky_relu, prelu, softshrink

INF = torch.tensor(math.inf, dtype=torch.float64)


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


@pytest.mark.parametrize("activation", [swish(), GELU, MISH, GELU_TANH, TANH, ERF], ids=str)
def test_ascent_on_the_slope_ends_at_the_constant(activation: Activation):
    # The search of the survey: gradient ascent of |f'| in float64; a lower bound that comes within 1e-6.
    x = torch.linspace(-10, 10, 256, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=3e-2)
    best = 0.0
    for _ in range(300):
        (slope,) = torch.autograd.grad(activation(x).sum(), x, create_graph=True)
        best = max(best, slope.abs().max().item())
        x.grad = torch.autograd.grad(-slope.abs().sum(), x)[0]
        optimizer.step()
    alpha, beta = activation.slopes(-INF, INF)
    constant = max(abs(alpha.item()), abs(beta.item()))
    assert constant - 1e-6 <= best <= constant


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
    smooth = round_kinks(RELU, mu)
    assert torch.allclose(smooth(z), mu * torch.nn.functional.softplus(z / mu, threshold=1e9), rtol=0, atol=1e-14)
    assert ((smooth(z) - z.relu()) <= mu * math.log(2) * (1 + 1e-12)).all()
    assert not smooth.kinks
    # Smoothness 1 / (4 mu); convex, so curvature never negative.
    under, over = smooth.bends(-INF, INF)
    assert under == 0
    assert over.item() == pytest.approx(1 / (4 * mu), rel=1e-12)


def test_a_smoothed_prelu_has_its_slopes_for_each_channel():
    weight = torch.tensor([0.25, -1.0, 1.5])
    smooth = round_kinks(prelu(weight[:, None]), 0.1)
    z = torch.linspace(-3, 3, 7, dtype=torch.float64).expand(3, 7)
    softplus = 0.1 * torch.nn.functional.softplus(z / 0.1)
    expected = weight[:, None] * z + (1 - weight[:, None]) * softplus
    assert torch.allclose(smooth(z), expected.double(), rtol=0, atol=1e-12)
    alpha, beta = smooth.slopes(torch.full((3, 1), -9.0).double(), torch.full((3, 1), 9.0).double())
    # Sigmoids at +-90 are 0 and 1 to the last digit.
    assert torch.allclose(alpha[:, 0], torch.tensor([0.25, -1.0, 1.0]).double(), rtol=0, atol=1e-12)
    assert torch.allclose(beta[:, 0], torch.tensor([1.0, 1.0, 1.5]).double(), rtol=0, atol=1e-12)
    assert not smooth.kinks


def test_smoothed_absolute_value_is_a_hypotenuse():
    z = torch.linspace(-5, 5, 401, dtype=torch.float64)
    smooth = round_kinks(ABS, 0.25)
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
    with pytest.raises(ArgumentError, match="mu > 0"):
        round_kinks(RELU, 0.0)
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
