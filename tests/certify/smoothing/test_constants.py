"""Constants of smoothed functions: closed forms attain them, and never exceed them."""

import math

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, KindError, MetricError, RegionError, ShapeError
from lipkit.regions import Ball
from support.smoothing.probit import Probit

slopes = st.floats(0.01, 100.0)
scales = st.floats(0.02, 10.0)


def stated(value: float, kind: Kind = Kind.UPPER) -> Bound:
    return Bound.from_value(value, kind, "stated")


def constant(slope: float | None, sigma: float, rule: rs.SmoothingLaw, mass: float = 1.0) -> float:
    bound = None if slope is None else stated(slope)
    return rs.smoothed_lipschitz(bound, sigma, mass, rule).value.item()


@given(slopes, scales)
def test_every_law_is_above_the_gradient_of_probit_regression(slope: float, sigma: float):
    base = Probit(slope)
    true = base.smoothed(sigma)
    assert constant(None, sigma, rs.Salman()) >= true.coordinate
    assert constant(None, sigma, rs.BoundedRange()) >= true.coordinate
    assert constant(base.coordinate, sigma, rs.LipschitzCoordinate()) >= true.coordinate
    assert constant(base.joint, sigma, rs.LipschitzJoint()) >= true.joint
    # Phi^-1 of the smoothed function is linear, of the slope that Probit says.
    assert constant(None, sigma, rs.QuantileScale()) >= true.slope
    for share in (0.5, 0.9, 1.0):
        law = rs.LocalQuantileScale(0.5, share, Ball(torch.zeros(1), 0.3))
        assert constant(base.coordinate, sigma, law) >= true.slope


@given(slopes, scales)
def test_laws_are_ordered(slope: float, sigma: float):
    own = constant(slope, sigma, rs.LipschitzCoordinate())
    refined, salman = constant(None, sigma, rs.BoundedRange()), constant(None, sigma, rs.Salman())
    assert own <= min(slope, refined) * (1 + 1e-13)
    assert 2 * refined == pytest.approx(salman, rel=1e-13)
    joint = constant(slope, sigma, rs.LipschitzJoint())
    assert joint <= min(slope, 1 / (math.sqrt(math.pi) * sigma)) * (1 + 1e-13)
    assert joint >= own
    local = constant(slope, sigma, rs.LocalQuantileScale(0.2, 0.7, Ball(torch.zeros(1), 0.1)))
    assert local <= 1 / sigma * (1 + 1e-13)


@given(slopes, scales, st.floats(0.1, 10.0))
def test_the_mass_is_a_unit(slope: float, sigma: float, mass: float):
    """(r, L) -> (c r, c L) multiplies the constant by c, and leaves those of quantiles alone."""
    for rule in (rs.LipschitzCoordinate(), rs.LipschitzJoint(), rs.Salman(), rs.BoundedRange()):
        scaled = constant(mass * slope, sigma, rule, mass)
        assert scaled == pytest.approx(mass * constant(slope, sigma, rule), rel=1e-12)
    local = rs.LocalQuantileScale(0.3, 0.6, Ball(torch.zeros(1), 0.1))
    assert constant(mass * slope, sigma, local, mass) == pytest.approx(constant(slope, sigma, local), rel=1e-8)


@pytest.mark.parametrize("slope", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_a_ramp_attains_the_law_of_lipschitz_functions(slope: float, sigma: float):
    """The derivative of a smoothed ramp in its middle, by quadrature of its slope against the density."""
    found = scipy.integrate.quad(
        lambda t: slope * scipy.stats.norm.pdf(t, scale=sigma), -0.5 / slope, 0.5 / slope, points=[0.0]
    )[0]
    assert constant(slope, sigma, rs.LipschitzCoordinate()) == pytest.approx(found, rel=1e-10)
    # Two classes (f, 1 - f) have sqrt(2) times the constants of f, before and after.
    assert constant(math.sqrt(2) * slope, sigma, rs.LipschitzJoint()) == pytest.approx(math.sqrt(2) * found, rel=1e-10)


def test_limits():
    assert constant(0.0, 1.0, rs.LipschitzCoordinate()) <= 1e-300
    assert constant(1e300, 1.0, rs.LipschitzCoordinate()) == pytest.approx(constant(None, 1.0, rs.BoundedRange()))
    assert constant(2.0, 1e-9, rs.LipschitzCoordinate()) == pytest.approx(2.0)
    ball = Ball(torch.zeros(1), 0.1)
    assert constant(1e300, 0.5, rs.LocalQuantileScale(0.5, 0.5, ball)) == pytest.approx(2.0)
    assert constant(1.0, 0.25, rs.LocalQuantileScale(0.5, 0.7, Ball(torch.zeros(1), 0.0))) == pytest.approx(
        2.5025, abs=6e-5
    )
    # The product of both is 0.
    for law in (rs.LipschitzCoordinate(), rs.LipschitzJoint()):
        assert constant(1e-200, 1e-200, law) == pytest.approx(1e-200, rel=1e-12, abs=0.0)
    assert constant(1e-200, 1e-200, rs.LocalQuantileScale(0.5, 0.5, ball)) <= 1e200 * (1 + 1e-12)
    # Far away nothing is known.
    assert constant(1.0, 0.25, rs.LocalQuantileScale(0.5, 0.7, Ball(torch.zeros(1), 50.0))) == pytest.approx(4.0)


@pytest.mark.parametrize(("rule", "length"), [(rs.LipschitzCoordinate(), 1.0), (rs.LipschitzJoint(), math.sqrt(2))])
def test_the_best_noise_maximises_the_gain(rule: rs.LipschitzCoordinate | rs.LipschitzJoint, length: float):
    slope, mass = 3.0, 2.0
    sigmas = np.geomspace(0.01, 10, 20_001)
    gap = [
        min(slope, mass * length / (math.sqrt(2 * math.pi) * s)) - constant(slope, s, rule, mass) for s in sigmas[::20]
    ]
    best = rs.optimal_sigma(slope, mass, rule)
    # Neighbours of the grid are 0.7 % apart.
    assert sigmas[::20][int(np.argmax(gap))] == pytest.approx(best, rel=0.007)
    assert constant(slope, best, rule, mass) == pytest.approx(math.erf(math.sqrt(math.pi) / 2) * slope)
    assert math.erf(math.sqrt(math.pi) / 2) == pytest.approx(0.7899, abs=6e-5)


def test_what_a_constant_promises():
    random = Bound(torch.tensor(0.0, dtype=torch.float64), Kind.UPPER, "drawn", failure=1e-9)
    found = rs.smoothed_lipschitz(random, 0.5)
    assert found.kind is Kind.UPPER
    assert found.failure == 1e-9
    assert isinstance(found.method, rs.LipschitzCoordinate)
    ball = Ball(torch.zeros(1), 0.1)
    local = rs.smoothed_lipschitz(random, 0.5, rule=rs.LocalQuantileScale(0.5, 0.6, ball))
    assert local.region == ball
    assert "Phi^-1" in local.note


def test_what_proves_nothing_is_refused():
    with pytest.raises(ArgumentError, match="needs the Lipschitz constant of the function, got None"):
        rs.smoothed_lipschitz(None, 1.0)
    with pytest.raises(KindError, match="Only an exact or upper bound certifies"):
        rs.smoothed_lipschitz(stated(1.0, Kind.LOWER), 1.0)
    with pytest.raises(MetricError, match="from l2 to l2"):
        rs.smoothed_lipschitz(Bound.from_value(1.0, Kind.UPPER, "stated", Metric(1.0, 1.0)), 1.0)
    local = rs.smoothed_lipschitz(stated(1.0), 1.0, rule=rs.LocalQuantileScale(0.5, 0.6, Ball(torch.zeros(1), 0.1)))
    with pytest.raises(RegionError, match="Noise leaves every region"):
        rs.smoothed_lipschitz(local, 1.0)
    pairs = Bound.from_value(torch.ones(3, 3, dtype=torch.float64), Kind.UPPER, "stated", of=Scope.PAIR)
    with pytest.raises(ShapeError, match="One constant is smoothed at a time"):
        rs.smoothed_lipschitz(pairs, 1.0)
    with pytest.raises(ArgumentError, match=r"standard deviation is a finite number > 0, got 0\.0"):
        rs.smoothed_lipschitz(stated(1.0), 0.0)
    with pytest.raises(ArgumentError, match=r"Lipschitz constant is a finite number > 0, got 0\.0"):
        rs.optimal_sigma(0.0)
    with pytest.raises(ArgumentError, match=r"ordered and in \[0, 1\], got 0\.7 and 0\.5"):
        rs.LocalQuantileScale(0.7, 0.5, Ball(torch.zeros(1), 0.1))
    with pytest.raises(MetricError, match="l2 balls, got a linf ball"):
        rs.LocalQuantileScale(0.5, 0.7, Ball(torch.zeros(1), 0.1, math.inf))
