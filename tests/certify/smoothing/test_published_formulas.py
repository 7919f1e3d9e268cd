"""Published formulas about smoothing that do not hold as printed: the counter-examples, and lipkit's own form."""

import math

import pytest
import scipy
import torch

from lipkit.bound import Bound, Kind
from lipkit.certify import smoothing as rs
from support.printed import smoothing as printed


def smoothed(slope: float, sigma: float, rule: rs.SmoothingLaw, mass: float = 1.0) -> float:
    return rs.smoothed_lipschitz(Bound.from_value(slope, Kind.UPPER, "stated"), sigma, mass, rule).value.item()


def gaussian_radius(p: float, q: float, sigma: float) -> float:
    shares = torch.tensor([p], dtype=torch.float64), torch.tensor([[q]], dtype=torch.float64)
    return rs.Gaussian(sigma).radii(*shares, None).value.item()


def test_the_constant_of_a_smoothed_function_falls_with_sigma_not_with_its_square():
    sigma = 2.0
    true = printed.ramp_slope(100.0, sigma)
    assert 1 / (math.sqrt(2 * math.pi) * sigma**2) < 0.6 * true
    # The right one is nearly attained by so steep a ramp.
    assert true <= smoothed(100.0, sigma, rs.BoundedRange()) <= true * 1.0001


def test_the_best_noise_for_one_output_is_smaller_than_the_joint_one():
    slope = 1.0

    def gain(sigma: float) -> float:
        alone = min(slope, smoothed(slope, sigma, rs.BoundedRange()))
        return alone / smoothed(slope, sigma, rs.LipschitzCoordinate())

    assert gain(rs.optimal_sigma(slope, rule=rs.LipschitzCoordinate())) == pytest.approx(1.2660, abs=6e-5)
    assert gain(1 / (math.sqrt(math.pi) * slope)) == pytest.approx(1.1323, abs=6e-5)


def test_radii_from_constants_are_lower_bounds():
    """A half-space at the distance of three standard deviations has a larger radius than the printed upper bound."""
    sigma, distance = 1.0, 3.0
    p = float(scipy.special.ndtr(distance / sigma))
    margin = 2 * p - 1
    claimed = math.sqrt(math.pi / 2) * sigma * margin
    assert claimed < 0.42 * distance
    assert claimed == pytest.approx(margin / (2 * smoothed(1e9, sigma, rs.BoundedRange())), rel=1e-9)
    assert gaussian_radius(p, 1 - p, sigma) == pytest.approx(distance, abs=1e-9)


def test_the_radius_of_lipschitz_classifiers_needs_quantiles():
    """Without them the limit of large constants is 0.0813, not the multi-class radius 0.2348."""
    p, q, sigma = 0.8, 0.15, 0.25
    scale = smoothed(1e300, sigma, rs.QuantileScale())
    assert (p - q) / (2 * scale) == pytest.approx(0.0813, abs=6e-5)
    assert gaussian_radius(p, q, sigma) == pytest.approx(0.2348, abs=6e-5)


def test_the_smoothed_simplex_has_an_upper_bound_with_sigma_under_the_root():
    sigma = 2.0
    steep = math.sqrt(2) * printed.ramp_slope(1e6, sigma)  # of (f, 1 - f), f a steep ramp
    assert 1 / (math.sqrt(math.pi) * sigma**2) < 0.6 * steep
    assert steep <= smoothed(math.sqrt(2) * 1e6, sigma, rs.LipschitzJoint()) <= steep * 1.0001
    # Equality does not hold: (Phi(t), Phi(-t)) at the noise of 1.
    joint = 1 / math.sqrt(math.pi)
    assert 1 / math.sqrt(2 * math.pi) < 0.9 * smoothed(joint, 1.0, rs.LipschitzJoint())


def test_one_of_two_probits_is_near_the_sigmoid():
    worse, near, best = (float(number) for number in printed.probit_scale())
    assert worse > 5 * near > 5 * best
