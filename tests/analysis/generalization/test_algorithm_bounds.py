"""Bounds of risks by algorithms: closed forms, the sum that a constant rests on, and gaps that are known exactly."""

import math
from itertools import product

import pytest
import torch

from lipkit.analysis.generalization import mutual_information_bound, pac_bayes_bound, stability_bound
from lipkit.errors import ArgumentError


@pytest.mark.parametrize(("empirical", "divergence", "count"), [(0.1, 5.0, 100), (0.5, 0.0, 7), (0.02, 300.0, 60_000)])
def test_the_bound_of_pac_bayes_solves_its_equation(empirical: float, divergence: float, count: int):
    found = pac_bayes_bound(empirical, divergence, count, 0.05)
    assert found > empirical
    pairs = ((empirical, found), (1 - empirical, 1 - found))
    reached = math.fsum(share * math.log(share / other) for share, other in pairs)
    assert reached == pytest.approx((divergence + math.log(2 * math.sqrt(count) / 0.05)) / count, rel=1e-9)
    # Pinsker's inequality makes the weaker form that is better known.
    assert found <= empirical + math.sqrt(reached / 2)


def test_without_errors_pac_bayes_has_a_closed_form():
    budget = (3.0 + math.log(2 * math.sqrt(50) / 0.1)) / 50
    found = pac_bayes_bound(0.0, 3.0, 50, 0.1)
    assert found == pytest.approx(-math.expm1(-budget), rel=1e-14)
    assert pac_bayes_bound(1.0, 0.0, 50, 0.1) == 1
    assert pac_bayes_bound(0.3, 1e9, 50, 0.1) == 1
    assert found >= -math.expm1(-budget) * (1 - 1e-15)


@pytest.mark.parametrize("count", [*range(1, 30), 1000])
def test_the_constant_of_pac_bayes_holds_for_every_count(count: int):
    """E exp(m kl(mean, r)) is at most 2 m^(1/2): for r in the whole interval it is this sum (Maurer 2004)."""
    terms = [
        math.exp(math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) + _power(k, count))
        for k in range(count + 1)
    ]
    assert math.fsum(terms) <= 2 * math.sqrt(count) * (1 + 1e-9)


def _power(k: int, count: int) -> float:
    return math.fsum(part * math.log(part / count) for part in (k, count - k) if part)


def test_pac_bayes_fails_as_seldom_as_it_says():
    source = torch.Generator().manual_seed(0)
    heads = (torch.rand(20_000, 20, generator=source) < 0.3).double().mean(1)
    limits = {mean: pac_bayes_bound(mean, 0.0, 20, 0.2) for mean in set(heads.tolist())}
    missed = sum(limits[mean] < 0.3 for mean in heads.tolist()) / len(heads)
    assert missed <= 0.2
    assert missed > 0  # it is not so loose that this could not fail


def test_the_stability_of_a_mean_bounds_its_risk():
    """f = the mean of m numbers in [0, 1], losses (f - x)^2: without one of them f moves by 1/m at most, so the loss
    by 2/m. Its risk is Var + (f - E)^2.
    """
    count, draws = 4000, torch.rand(200, 4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    means = draws.mean(1)
    empirical, population = draws.var(1, correction=0), 1 / 12 + (means - 0.5).square()
    bounds = torch.tensor([stability_bound(float(one), 2 / count, count, 0.05) for one in empirical])
    assert bool((bounds > population).all())
    assert float(bounds[0] - empirical[0]) == pytest.approx(4 / count + 9 * math.sqrt(math.log(20) / (2 * count)))
    # A model that ignores its data has Hoeffding's bound.
    assert stability_bound(0.2, 0.0, 50, 0.1) == pytest.approx(0.2 + math.sqrt(math.log(10) / 100), rel=1e-15)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_information_bounds_the_gap_of_an_algorithm_that_tells_its_data(count: int):
    """m fair bits; the model is their majority, and its loss 1 where a bit differs. All is counted."""
    empirical, outcomes = 0.0, {0: 0, 1: 0}
    for bits in product((0, 1), repeat=count):
        model = int(2 * sum(bits) > count)
        outcomes[model] += 1
        empirical += sum(bit != model for bit in bits) / count / 2**count
    # The model is a function of the data, so their information is its entropy.
    information = -math.fsum(n / 2**count * math.log(n / 2**count) for n in outcomes.values())
    bound = mutual_information_bound(information, count)
    assert 0 < 0.5 - empirical <= bound <= 1.9 * (0.5 - empirical)
    assert mutual_information_bound(math.log(2), 1) == pytest.approx(math.sqrt(math.log(2) / 2), rel=1e-15)


def test_bad_input_is_refused():
    for wrong in ((-0.1, 1.0, 10, 0.1), (0.1, -1.0, 10, 0.1), (0.1, 1.0, 0, 0.1), (0.1, 1.0, 10, 1.0)):
        with pytest.raises(ArgumentError, match=r"lies in \[0, 1\]"):
            pac_bayes_bound(*wrong)
        with pytest.raises(ArgumentError, match=r"lies in \[0, 1\]"):
            stability_bound(*wrong)
    with pytest.raises(ArgumentError, match="nan"):
        pac_bayes_bound(math.nan, 1.0, 10, 0.1)
    for information in (-1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="finite"):
            mutual_information_bound(information, 10)
