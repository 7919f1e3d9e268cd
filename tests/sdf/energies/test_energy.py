"""Energies: densities whose ratios are bounded by the constant, on a box; combinations with their constants."""

import math
from collections.abc import Callable
from typing import final

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, KindError, ShapeError
from lipkit.sdf import Energy, Field, Function, Network, Sphere
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


def stated(formula: Callable[[torch.Tensor], torch.Tensor], dim: int, constant: float) -> Function:
    """A formula of a few operations with a constant that these tests know."""
    return Function(formula, dim, constant, roundings=8)


def length(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=1)


@pytest.fixture(scope="module")
def network_energy() -> Energy:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    return Energy(Network(model, torch.zeros(1, 3)), -2.0, 2.0)


@given(st.integers(0, 2**32))
def test_no_ratio_of_densities_is_larger_than_certified(network_energy: Energy, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = network_energy.draw_evenly(64, random)
    # Half of the pairs are near each other, where a difference quotient comes nearest to the slope.
    near = torch.rand(64, 1, generator=random, dtype=torch.float64) < 0.5
    y = torch.where(near, x + 1e-3 * torch.randn(64, 3, generator=random), network_energy.draw_evenly(64, random))
    y = y.clamp(-2, 2)
    ratio = network_energy.log_ratio(x, y)
    assert bool((ratio.value.abs() - ratio.error <= network_energy.log_ratio_bound(x, y)).all())


def test_the_certified_ratio_is_attained_by_a_cone() -> None:
    energy = Energy(stated(lambda x: 3 * length(x), 2, 3.0), -1.0, 1.0)
    center, corner = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    bound = energy.log_ratio_bound(center, corner)
    # |corner| is 1 up to one rounding; a norm is rounded up by the count of its terms, a constant through a logarithm.
    assert 3.0 <= float(bound) <= 3.0 * (1 + 1e-12)
    found = energy.log_ratio(center, corner)
    assert abs(float(found.value) - 3.0) <= float(found.error) + 2**-50


def test_a_ratio_is_that_of_the_densities() -> None:
    energy = Energy(stated(lambda x: 2 * x[:, 0].abs() + x[:, 0], 1, 3.0), -1.0, 2.0)
    total, _ = quad(lambda t: math.exp(-2 * abs(t) - t), -1, 2, points=[0])
    x, y = torch.tensor([[-0.5]]), torch.tensor([[1.25]])
    density = [math.exp(-2 * abs(float(t)) - float(t)) / total for t in (x, y)]
    assert math.isclose(float(energy.log_ratio(x, y).value), math.log(density[0] / density[1]), rel_tol=1e-12)


def test_points_outside_and_pairs_that_do_not_match_are_refused() -> None:
    energy = Energy(stated(length, 2, 1.0), -1.0, 1.0)
    inside, outside = torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [0.0, 1.5], [0.0, 0.0]])
    assert energy.contains(outside).tolist() == [True, False, True]
    with pytest.raises(ArgumentError, match=r"1 of 3 points lie outside.*\[0\.0, 1\.5\]"):
        energy.log_ratio(inside, outside)
    with pytest.raises(ArgumentError, match="outside the box"):
        energy.log_ratio_bound(outside, inside)
    with unchecked(), pytest.raises(ShapeError, match="pairs, got 3 and 2"):
        energy.log_ratio(inside, inside[:2])


@pytest.mark.parametrize("end", [math.inf, -math.inf, math.nan])
def test_an_unbounded_domain_is_refused(end: float) -> None:
    # exp(-|x_1|) has no finite integral over the plane.
    ridge = stated(lambda x: x[:, 0].abs(), 2, 1.0)
    with pytest.raises(ArgumentError, match=r"bounded box.*need not be finite"):
        Energy(ridge, torch.tensor([-1.0, end]), 1.0)
    with pytest.raises(ArgumentError, match="bounded box"):
        Energy(ridge, -1.0, end)


def test_boxes_without_width_or_of_another_dimension_are_refused() -> None:
    field = stated(length, 2, 1.0)
    with pytest.raises(ArgumentError, match="low < high"):
        Energy(field, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))
    with pytest.raises(ArgumentError, match="low < high"):
        Energy(field, -1.7e308, 1.7e308)
    with unchecked(), pytest.raises(ShapeError, match="length 2"):
        Energy(field, torch.zeros(3), 1.0)


def test_even_draws_fill_the_box_and_repeat() -> None:
    energy = Energy(stated(length, 2, 1.0), torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 2.5]))
    points = energy.draw_evenly(20_000, torch.Generator().manual_seed(0))
    assert torch.equal(points, energy.draw_evenly(20_000, torch.Generator().manual_seed(0)))
    assert bool(energy.contains(points).all())
    # Means within five standard errors, side / sqrt(12 n).
    errors = torch.tensor([4.0, 0.5]) / math.sqrt(12 * 20_000)
    assert bool(((points.mean(0) - torch.tensor([1.0, 2.25])).abs() <= 5 * errors).all())
    with pytest.raises(ArgumentError, match="count=0"):
        energy.draw_evenly(0)


@given(st.integers(0, 2**32), st.floats(0.1, 8), st.floats(0.1, 8))
def test_difference_quotients_of_combinations_stay_below_their_constants(seed: int, k: float, m: float) -> None:
    random = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 2, generator=random, dtype=torch.float64)
    a = Energy(stated(lambda x: k * length(x - p), 2, k), -3.0, 3.0)
    b = Energy(stated(lambda x: m * length(x - q), 2, m), -3.0, 3.0)
    combined = {"union": a.union(b, (0.3, -1.2)), "product": a.intersection(b), "quotient": a.difference(b)}
    wanted = {"union": max(k, m), "product": k + m, "quotient": k + m}
    x = a.draw_evenly(256, random)
    y = (x + 1e-3 * torch.randn(256, 2, generator=random, dtype=torch.float64)).clamp(-3, 3)
    for name, energy in combined.items():
        constant = constant_of(energy.field)
        # Constants are rounded up, through a logarithm.
        assert wanted[name] <= constant <= wanted[name] * (1 + 1e-12), name
        assert energy.bound.kind is Kind.UPPER, name
        at_x, at_y = energy.field.measure(x), energy.field.measure(y)
        change = (at_x.value - at_y.value).abs() - at_x.error - at_y.error
        assert bool((change <= constant * length(x - y) * (1 + 1e-12)).all()), name


def test_the_constants_of_product_and_quotient_are_attained() -> None:
    rise = Energy(stated(lambda x: x[:, 0], 1, 1.0), -1.0, 1.0)
    fall = Energy(stated(lambda x: -x[:, 0], 1, 1.0), -1.0, 1.0)
    ends = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    for energy in (rise.intersection(rise), rise.difference(fall)):
        values = energy.field(ends)
        assert float((values[1] - values[0]) / 2) == 2.0
        assert math.isclose(constant_of(energy.field), 2.0, rel_tol=1e-12)
    # A mean of a slope with itself is that slope, so no constant below the larger one would do for unions either.
    values = rise.union(rise).field(ends)
    assert math.isclose(float((values[1] - values[0]) / 2), 1.0, rel_tol=1e-14)


@final
class Guessed(Field):
    """|x|, of a constant that nobody has proven."""

    @property
    def dim(self) -> int:
        return 2

    @property
    def bound(self) -> Bound:
        return Bound.from_value(1.0, Kind.ESTIMATE, "a guess")

    def _values(self, points: torch.Tensor) -> torch.Tensor:
        return length(points)

    def _errors(self, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values * 1e-15


def test_a_guess_does_not_become_a_certificate() -> None:
    # EXACT for the two cones, and still no more than an upper bound for what is made of them.
    cone = Energy(Sphere(torch.zeros(2), 1.0), -1.0, 1.0)
    assert cone.bound.kind is Kind.EXACT
    assert {one.bound.kind for one in (cone.union(cone), cone.intersection(cone))} == {Kind.UPPER}
    guess = Energy(Guessed(), -1.0, 1.0)
    for energy in (guess, cone.union(guess), cone.intersection(guess), guess.difference(cone)):
        with pytest.raises(KindError):
            energy.log_ratio_bound(torch.zeros(1, 2), torch.ones(1, 2))


def test_a_union_mixes_densities_in_the_shares_of_its_weights() -> None:
    a = Energy(stated(lambda x: 4 * (x[:, 0] - 1).abs(), 1, 4.0), -2.0, 2.0)
    b = Energy(stated(lambda x: 2 * (x[:, 0] + 1).abs(), 1, 2.0), -2.0, 2.0)
    z_a, _ = quad(lambda t: math.exp(-4 * abs(t - 1)), -2, 2, points=[1])
    z_b, _ = quad(lambda t: math.exp(-2 * abs(t + 1)), -2, 2, points=[-1])
    mixed = a.union(b, (math.log(0.3 / z_a), math.log(0.7 / z_b)))
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None]
    wanted = 0.3 * torch.exp(-a.field(x)) / z_a + 0.7 * torch.exp(-b.field(x)) / z_b
    # Quadrature is good to 1e-10.
    torch.testing.assert_close(torch.exp(-mixed.field(x)), wanted, rtol=1e-9, atol=0)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=2), st.floats(-700, 700), st.floats(-700, 700))
def test_the_rounding_of_combinations_is_covered(point: list[float], log_w: float, log_v: float) -> None:
    # Negated balls are energies: distances to a point minus a radius.
    a, b = Sphere(torch.tensor([0.25, -1.0]), 0.5), Sphere(torch.tensor([-3.0, 0.125]), 2.0)
    one, other = Energy(a, -50.0, 50.0), Energy(b, -50.0, 50.0)
    x = torch.tensor([point], dtype=torch.float64)
    with mpmath.workdps(60):
        f = mpmath.mpf(0.5) - mpmath.hypot(point[0] - mpmath.mpf(0.25), point[1] + mpmath.mpf(1))
        g = mpmath.mpf(2) - mpmath.hypot(point[0] + mpmath.mpf(3), point[1] - mpmath.mpf(0.125))
        truths = {
            one.union(other, (log_w, log_v)): -mpmath.log(mpmath.exp(log_w - f) + mpmath.exp(log_v - g)),
            one.intersection(other): f + g,
            one.difference(other): f - g,
        }
        for energy, truth in truths.items():
            found = energy.field.measure(x)
            assert abs(mpmath.mpf(float(found.value)) - truth) <= mpmath.mpf(float(found.error))
            # A useful error: a few roundings of numbers up to a thousand.
            assert float(found.error) <= 1e-10


def test_energies_on_two_boxes_or_in_two_spaces_are_not_combined() -> None:
    one = Energy(stated(length, 2, 1.0), -1.0, 1.0)
    with pytest.raises(ArgumentError, match="on one box"):
        one.union(Energy(one.field, -1.0, 2.0))
    with pytest.raises(ShapeError, match="one dimension"):
        one.intersection(Energy(stated(length, 3, 1.0), -1.0, 1.0))
    with pytest.raises(ArgumentError, match="logarithms of weights"):
        one.union(one, (0.0, -math.inf))
