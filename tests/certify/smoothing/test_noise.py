"""Radii under noise: worst-case functions that attain them, closed forms, and the published ones as lower limits."""

import math

import mpmath
import numpy as np
import pytest
import scipy
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError
from support.smoothing import published_radii
from support.smoothing.probit import Probit

scales = st.sampled_from([0.05, 0.25, 1.0, 3.0])
NOISES = [rs.Gaussian(0.25), rs.Uniform(0.5), rs.Laplace(0.3)]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def radius(noise: rs.Noise, p: float, q: float, coordinate: float | None = None, pair: float | None = None) -> float:
    constants = None
    if coordinate is not None and pair is not None:
        constants = rs.Constants(column(coordinate), column(pair))
    return noise.radii(column(p), column(q)[:, None], constants).value.item()


def rule(noise: rs.Noise, p: float, q: float, coordinate: float, pair: float) -> str:
    found = noise.radii(column(p), column(q)[:, None], rs.Constants(column(coordinate), column(pair)))
    return noise.rules[int(found.rule.item())]


@st.composite
def two_shares(draw: st.DrawFn) -> tuple[float, float]:
    """A label, and a rival that has less of what is left."""
    p = draw(st.floats(1e-3, 1 - 1e-9))
    q = draw(st.floats(1e-9, 1.0)) * min(p, 1 - p)
    assume(1e-12 < q < p)
    return p, q


# --- Gaussian noise: the quantile rule -------------------------------------------------------------------------------


@given(shares=two_shares(), sigma=scales)
def test_the_quantile_rule_is_rounded_down(shares: tuple[float, float], sigma: float):
    p, q = shares
    with mpmath.workdps(40):
        quantiles = [mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(share) - 1) for share in shares]
        true = mpmath.mpf(sigma) / 2 * (quantiles[0] - quantiles[1])
    found = radius(rs.Gaussian(sigma), p, q)
    assert found <= true
    # The trust of 1e-12 in a tail moves its quantile by less than this.
    assert found >= true - 2e-11 * sigma


@given(shares=two_shares(), sigma=scales)
def test_half_spaces_attain_the_quantile_rule(shares: tuple[float, float], sigma: float):
    """Neyman and Pearson: votes for the label below a, for the rival above b, tie at the distance R."""
    p, q = shares
    a, b = sigma * scipy.special.ndtri(p), -sigma * scipy.special.ndtri(q)
    tie = radius(rs.Gaussian(sigma), p, q)

    def lead(x: float) -> float:
        return float(scipy.special.ndtr((a - x) / sigma) - scipy.special.ndtr((x - b) / sigma))

    # Where both votes have tails of 1e-9, eight digits of a difference are rounding.
    assert lead(tie - 1e-6 * sigma) >= -1e-13
    assert lead(tie + 1e-4 * sigma) <= 1e-13


def test_a_rival_with_all_the_rest_gives_one_against_all():
    for p in (0.55, 0.8, 0.999):
        expected = published_radii.one_against_all(p, 0.25)
        assert radius(rs.Gaussian(0.25), p, 1 - p) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_a_rival_may_have_a_little_more_than_the_rest(noise: rs.Noise):
    """Votes in float32 sum to one up to rounding; an event says so, and no radius may forget it."""
    assert radius(noise, 0.8, 0.2 + 1e-6) < radius(noise, 0.8, 0.2)


# --- Gaussian noise: ramps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "slope", "sigma", "expected"),
    [
        (0.8, 0.15, 1.0, 0.25, 0.3755),
        (0.99, 0.005, 1.0, 0.25, 0.8779),
        (0.99, 0.005, 3.0, 0.25, 0.6548),
        (0.6, 0.3, 2.0, 0.5, 0.2026),
    ],
)
def test_printed_radii_of_the_coordinate_ramp(p: float, q: float, slope: float, sigma: float, expected: float):
    # Without a constant of pairs the margin rule says nothing.
    assert radius(rs.Gaussian(sigma), p, q, slope, 1e9) == pytest.approx(expected, abs=6e-5)
    assert rule(rs.Gaussian(sigma), p, q, slope, 1e9) == "coordinate ramp"


def test_the_coordinate_ramp_alone_is_below_published_radii():
    """L = 1 jointly, sigma = 1/4: .3755 < .4596 and .4618, the margin ramp has .4853; together they dominate."""
    p, q, sigma = 0.8, 0.15, 0.25
    assert radius(rs.Gaussian(sigma), p, q, 1.0, math.sqrt(2)) == pytest.approx(0.4853, abs=6e-5)
    assert rule(rs.Gaussian(sigma), p, q, 1.0, math.sqrt(2)) == "margin ramp"
    assert published_radii.unsmoothed(p, q, math.sqrt(2)) == pytest.approx(0.4596, abs=6e-5)
    assert published_radii.joint_law(p, q, sigma, 1.0) == pytest.approx(0.4618, abs=6e-5)


def test_each_rule_has_its_place():
    assert rule(rs.Gaussian(1.0), 0.1, 1e-6, 1e3, 1e3) == "quantile"
    assert rule(rs.Gaussian(0.25), 0.3, 1e-3, 0.5, 1.0) == "coordinate ramp"
    assert rule(rs.Gaussian(0.25), 0.8, 0.15, 1.0, math.sqrt(2)) == "margin ramp"


@given(shares=two_shares(), sigma=scales, joint=st.floats(0.02, 50.0), share=st.floats(0.5, 1.0))
def test_the_rules_dominate_published_radii(shares: tuple[float, float], sigma: float, joint: float, share: float):
    p, q = shares
    coordinate = share * joint
    pair = min(math.sqrt(2) * joint, 2 * coordinate)
    ours = radius(rs.Gaussian(sigma), p, q, coordinate, pair)
    for theirs in (
        published_radii.cohen(p, q, sigma),
        published_radii.one_against_all(p, sigma),
        published_radii.weak_law(p, q, sigma),
        published_radii.coordinate_law(p, q, sigma, coordinate),
        published_radii.joint_law(p, q, sigma, joint),
        published_radii.unsmoothed(p, q, pair),
        published_radii.unsmoothed(p, q, math.sqrt(2) * joint),
        published_radii.unsmoothed(p, q, 2 * coordinate),
    ):
        # Ours are rounded down: by the trust in terms of size w, and by 1e-12 / w for narrow ramps.
        assert ours >= theirs - 1e-8 * (sigma + 1 / joint)


@given(shares=two_shares(), sigma=scales, slope=st.floats(0.05, 20.0), factor=st.sampled_from([0.01, 3.0, 100.0]))
def test_units_do_not_matter(shares: tuple[float, float], sigma: float, slope: float, factor: float):
    p, q = shares
    one = radius(rs.Gaussian(sigma), p, q, slope, 1.5 * slope)
    other = radius(rs.Gaussian(factor * sigma), p, q, slope / factor, 1.5 * slope / factor)
    assert other == pytest.approx(factor * one, rel=1e-7, abs=1e-8 * factor * (sigma + 1 / slope))


@given(shares=two_shares())
def test_limits_of_steep_functions_and_of_little_noise(shares: tuple[float, float]):
    p, q = shares
    steep = radius(rs.Gaussian(0.5), p, q, 1e7, 1e7)
    assert steep == pytest.approx(published_radii.cohen(p, q, 0.5), abs=1e-8)
    # The noise of 1e-5 itself is worth a few of its standard deviations.
    assert radius(rs.Gaussian(1e-5), p, q, 2.0, 1e9) == pytest.approx((p - q) / 4, abs=1e-4)
    assert radius(rs.Gaussian(1e-5), p, q, 1e9, 3.0) == pytest.approx((p - q) / 3, abs=1e-4)


@given(st.floats(0.02, 50.0), st.floats(1e-3, 3.0), scales)
def test_radii_of_probit_regression_never_exceed_the_distance(slope: float, t: float, sigma: float):
    base = Probit(slope)
    p = base.smoothed(sigma).share(t)
    assume(p < 1 - 1e-9)
    found = radius(rs.Gaussian(sigma), p, 1 - p, base.coordinate, base.pair)
    # The share is rounded, and with it the distance that it stands for.
    assert found <= t * (1 + 1e-6)


def test_the_gap_to_probit_regression():
    """At the noise of 1 and the distance of 1: nothing is lost for steep functions, 11 % for the slope of 1.

    A probit of slope s has the constant of the ramp of width sqrt(2 pi)/s, and differs from it most where that is about
    the noise. The oracle integrates the ramp and searches for the distance at which it has the same share.
    """
    found, expected = [], []
    for slope in (0.1, 1.0, 100.0):
        base, width = Probit(slope), math.sqrt(2 * math.pi) / slope
        p = base.smoothed(1.0).share(1.0)

        def excess(q: float, width: float = width, p: float = p) -> float:
            return scipy.integrate.quad(scipy.special.ndtr, q - width / 2, q + width / 2)[0] / width - p

        found.append(radius(rs.Gaussian(1.0), p, 1 - p, base.coordinate, base.pair))
        expected.append(scipy.optimize.brentq(excess, 0.0, 2.0))
    # Of the quadrature.
    assert found == pytest.approx(expected, abs=1e-7)
    assert found == pytest.approx([0.9934, 0.8899, 1.0000], abs=6e-5)


def test_a_ramp_attains_the_margin_rule_and_two_ramps_the_coordinate_rule():
    """Votes (1 - f, f) of two classes; and of three classes, where label and rival have ramps far apart."""
    sigma, slope = 0.25, 2.0
    width = 1 / (slope * sigma)

    def smoothed(start: float) -> float:
        """E of the ramp that rises from `start` on, at the origin."""
        at = -np.array([start, start + 1 / slope]) / sigma
        hinge = at * scipy.special.ndtr(at) + np.exp(-at * at / 2) / np.sqrt(2 * np.pi)
        return float((hinge[0] - hinge[1]) / width)

    for distance in (0.1, 0.3, 0.6):
        p = 1 - smoothed(distance - 1 / (2 * slope))
        assert radius(rs.Gaussian(sigma), p, 1 - p, slope, 2 * slope) == pytest.approx(distance, abs=1e-8)
    # The label's ramp falls to 0 at a point where the rival's has not begun to rise, so the votes stay on the simplex.
    fall, rise = -0.2, 0.45
    p, q = smoothed(-fall), smoothed(rise)
    assert radius(rs.Gaussian(sigma), p, q, slope, 1e9) == pytest.approx((fall + rise) / 2, abs=1e-8)


# --- Uniform and Laplace noise ---------------------------------------------------------------------------------------


def worst_lead(before: np.ndarray, after: np.ndarray, p: float, q: float) -> float:
    """The least lead of the label after a move, over all votes with shares p and q before it, cell by cell.

    Neyman and Pearson: the label has the cells whose weight falls most, the rival those whose weight rises most.
    """
    order = np.argsort(after / np.maximum(before, 1e-300))
    before, after = before[order], after[order]

    def share(have: float, before: np.ndarray, after: np.ndarray) -> float:
        taken = np.diff(np.minimum(np.cumsum(before), have), prepend=0.0)
        free = before == 0
        return float((np.divide(taken, before, where=~free, out=np.zeros_like(taken)) * after).sum())

    rival = share(q, before[::-1], after[::-1]) + after[before == 0].sum()
    return share(p, before, after) - float(rival)


def cells(noise: rs.Noise, move: np.ndarray) -> np.ndarray:
    """The weights of small boxes after a move, for noise in one or two coordinates."""
    edges = np.linspace(-8.0, 8.0, 1601 if len(move) == 1 else 321)
    if isinstance(noise, rs.Uniform):
        law = scipy.stats.uniform(-noise.half_width, 2 * noise.half_width)
    else:
        assert isinstance(noise, rs.Laplace)
        law = scipy.stats.laplace(scale=noise.scale)
    axes = [np.diff(law.cdf(edges - step)) for step in move]
    return axes[0] if len(move) == 1 else np.outer(*axes).ravel()


@pytest.mark.parametrize("noise", [rs.Uniform(1.0), rs.Laplace(0.5)], ids=str)
@pytest.mark.parametrize(("p", "q"), [(0.6, 0.4), (0.9, 0.1), (0.5, 0.2), (0.3, 0.25), (0.2, 0.01)])
@pytest.mark.parametrize("direction", [(1.0,), (1.0, 0.0), (0.5, 0.5), (-0.8, 0.2)])
def test_no_votes_change_the_class_inside_l1_radii(noise: rs.Noise, p: float, q: float, direction: tuple[float, ...]):
    found = radius(noise, p, q)
    assert found > 0
    still, move = np.zeros(len(direction)), np.array(direction)
    # Cells are of size 0.01 and 0.05, which blunts the worst votes by about as much of a share.
    assert worst_lead(cells(noise, still), cells(noise, 0.999 * found * move), p, q) >= -1e-9


@pytest.mark.parametrize(
    ("noise", "p", "q"),
    [
        (rs.Uniform(1.0), 0.6, 0.4),
        (rs.Uniform(1.0), 0.3, 0.05),
        (rs.Laplace(0.5), 0.6, 0.4),
        (rs.Laplace(0.5), 0.9, 0.1),
        (rs.Laplace(0.5), 0.3, 0.2),
    ],
    ids=str,
)
def test_one_coordinate_attains_l1_radii(noise: rs.Noise, p: float, q: float):
    move = np.array([1.02 * radius(noise, p, q) + 0.01])
    assert worst_lead(cells(noise, np.zeros(1)), cells(noise, move), p, q) < 0


@given(two_shares())
def test_formulas_of_l1_radii(shares: tuple[float, float]):
    p, q = shares
    assert radius(rs.Uniform(0.5), p, q) == pytest.approx(0.5 * (p - q), rel=1e-14)
    both = 0.15 * math.log(p / q), -0.3 * math.log(1 - p + q)
    # Logarithms of shares near one lose what 1 - p loses.
    assert radius(rs.Laplace(0.3), p, q) == pytest.approx(max(both), rel=1e-6, abs=1e-13)


def test_two_classes_have_the_known_l1_radii():
    assert radius(rs.Uniform(0.5), 0.8, 1 - 0.8) == pytest.approx(2 * 0.5 * (0.8 - 0.5))
    assert radius(rs.Laplace(0.3), 0.8, 1 - 0.8) == pytest.approx(-0.3 * math.log(2 * (1 - 0.8)))


# --- All laws ---------------------------------------------------------------------------------------------------------


class Numbers:
    """Random numbers of torch, as an engine would give them."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator).clamp(2**-25, 1 - 2**-24)


@pytest.mark.parametrize(
    ("noise", "law"),
    [
        (rs.Gaussian(0.25), scipy.stats.norm(scale=0.25)),
        (rs.Uniform(0.5), scipy.stats.uniform(-0.5, 1.0)),
        (rs.Laplace(0.3), scipy.stats.laplace(scale=0.3)),
    ],
    ids=["Gaussian", "Uniform", "Laplace"],
)
def test_draws_have_their_law(noise: rs.Noise, law):
    drawn = noise.draw(Numbers(), (20_000, 1)).ravel().double().numpy()
    assert scipy.stats.kstest(drawn, law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_ends_of_shares_give_numbers(noise: rs.Noise):
    lower, upper = (each.ravel() for each in torch.meshgrid(*[column(0.0, 1e-310, 0.5, 1.0)] * 2, indexing="ij"))
    for constants in (None, rs.Constants(torch.zeros_like(lower), torch.full_like(lower, math.inf))):
        found = noise.radii(lower, upper[:, None], constants).value[:, 0]
        assert not bool(found.isnan().any())
        assert bool((found < math.inf).all())
        assert bool((found[lower <= upper] <= 0).all())
        assert bool((found[(lower == 1.0) & (upper < 1.0)] > 0).all())


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_rivals_are_taken_one_by_one(noise: rs.Noise):
    generator = torch.Generator().manual_seed(1)
    lower, upper = torch.rand(5, generator=generator).double(), torch.rand(5, 7, generator=generator).double()
    constants = rs.Constants(torch.full((5,), 0.7, dtype=torch.float64), torch.linspace(0.5, 3, 5).double())
    together = noise.radii(lower, upper, constants)
    for i in range(5):
        alone = noise.radii(
            lower[i : i + 1], upper[i : i + 1, 3:4], rs.Constants(column(0.7), constants.pair[i : i + 1])
        )
        assert (together.value[i, 3].item(), together.rule[i, 3].item()) == (alone.value.item(), alone.rule.item())


def test_what_is_no_share_and_no_constant_is_refused():
    with pytest.raises(ArgumentError, match=r"Shares lie in \[0, 1\], got `lower` from 1\.5 to 1\.5"):
        radius(rs.Gaussian(1.0), 1.5, 0.2)
    with pytest.raises(ArgumentError, match="got `upper` from nan to nan"):
        radius(rs.Laplace(1.0), 0.5, math.nan)
    with pytest.raises(ArgumentError, match="constants of votes are numbers >= 0, got nan"):
        radius(rs.Gaussian(1.0), 0.5, 0.2, math.nan, 1.0)
    for law in (rs.Gaussian, rs.Uniform, rs.Laplace):
        with pytest.raises(ArgumentError, match=r"of a noise is a finite number > 0, got 0\.0"):
            law(0.0)
    with pytest.raises(TypeCheckError):
        rs.Gaussian(1.0).radii(column(0.5).float(), column(0.5)[:, None], None)
