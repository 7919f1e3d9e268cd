"""Activations of one variable: largest slopes in many digits, splines, stairs, learnt slopes."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.nn import PReLU, Softplus, Spline, TriangularStairs
from lipkit.nn.activations.spline import SplineStart
from lipkit.nn.core import slopes
from lipkit.trace.nodes.activations.gated import GELU as GELU_NODE
from lipkit.trace.nodes.activations.gated import swish
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.pointwise import Activation


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("computed", "node"),
    [(slopes.GELU, GELU_NODE), (slopes.SILU, swish()), (slopes.MISH, MISH), (slopes.GELU_TANH, GELU_TANH)],
    ids=["gelu", "silu", "mish", "gelu tanh"],
)
def test_largest_slopes_agree_with_those_of_tracing(computed: float, node: Activation):
    ends = torch.tensor([-math.inf, math.inf], dtype=torch.float64)
    _, highest = node.slopes(ends[:1], ends[1:])
    # Two derivations that share no code; both are rounded up a little.
    assert computed == pytest.approx(float(highest), rel=1e-9)


@pytest.mark.parametrize(
    ("computed", "fn", "near"),
    [
        (slopes.GELU, lambda z: z * mpmath.ncdf(z), 1.4),
        (slopes.SILU, lambda z: z / (1 + mpmath.exp(-z)), 2.4),
        (slopes.MISH, lambda z: z * mpmath.tanh(mpmath.log(1 + mpmath.exp(z))), 1.5),
        (
            slopes.GELU_TANH,
            lambda z: z / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf("0.044715") * z**3))),
            1.5,
        ),
    ],
    ids=["gelu", "silu", "mish", "gelu tanh"],
)
def test_largest_slopes_are_upper_bounds_in_many_digits(computed: float, fn: Callable[..., object], near: float):
    with mpmath.workdps(40):
        at = mpmath.findroot(lambda z: mpmath.diff(fn, z, 2), near)
        truth = mpmath.diff(fn, at)
        # Above the truth, and by no more than the slack of 2^-40.
        assert truth <= computed <= truth * (1 + mpmath.mpf(2) ** -39)


@pytest.mark.parametrize("start", SplineStart)
def test_splines_start_as_named(start: SplineStart):
    known = {SplineStart.IDENTITY: lambda x: x, SplineStart.ABSOLUTE: torch.abs, SplineStart.RELU: torch.relu}[start]
    x = torch.linspace(-5, 5, 101, dtype=torch.float64).reshape(-1, 1)
    found = Spline(1, start=start, dtype=torch.float64)(x)
    # Slopes start at 0.99.
    assert torch.allclose(found, 0.99 * known(x), atol=1e-12)


@given(st.integers(1, 9), st.floats(0.5, 4), st.integers(0, 99))
def test_splines_are_the_sum_of_their_pieces(pieces: int, radius: float, seed: int):
    module = Spline(2, pieces, radius, dtype=torch.float64)
    for parameter in module.parameters():
        parameter.data.copy_(points(*parameter.shape, seed=seed))
    x = 2 * radius * points(50, 2, seed=seed + 1)
    knots = torch.linspace(-radius, radius, pieces + 1, dtype=torch.float64)
    slopes_, bias = torch.sin(module.raw.detach()), module.bias.detach()
    expected = bias + slopes_[:, 0] * (x + radius).clamp(max=0) + slopes_[:, -1] * (x - radius).clamp(min=0)
    for i in range(pieces):
        expected = expected + slopes_[:, i + 1] * (x.clamp(knots[i], knots[i + 1]) - knots[i])
    # At most nine terms of size ten.
    assert torch.allclose(module(x), expected, atol=1e-12)


@given(st.floats(-1, 1), st.floats(0.1, 2))
def test_stairs_stay_near_their_line_and_are_continuous(slope: float, width: float):
    x = torch.linspace(-6, 6, 6001, dtype=torch.float64)
    found = TriangularStairs(slope, width)(x)
    assert float((found - slope * x).abs().max()) <= width * (1 - slope**2) / 2 + 1e-12
    assert float((found[1:] - found[:-1]).abs().max()) <= 12 / 6000 + 1e-12


def test_the_printed_stairs_would_jump():
    """The second branch a - r, as printed, is a - 1 - a = -1 away from s + 0 at the end of a stair."""
    a = (1 + 0.3) / 2
    assert a - 1 != pytest.approx(2 * a - 1)
    assert TriangularStairs(0.3)(torch.tensor(1.0)) == pytest.approx(2 * a - 1, abs=1e-6)


def test_slopes_of_prelu_cannot_leave_the_interval():
    module = PReLU(3)
    module.raw.data.copy_(torch.tensor([1e4, -math.pi / 2, 37.0]))
    assert float(module.slopes.detach().abs().max()) <= 1
    assert PReLU().slopes.item() == pytest.approx(0.25)


def test_softplus_is_torchs_without_the_jump():
    x = torch.linspace(-30, 30, 601, dtype=torch.float64)
    # torch switches to x where 2 x > 20, which is off by 2e-9 / 2.
    assert torch.allclose(Softplus(2.0)(x), nn.functional.softplus(x, 2.0), atol=2e-9)
