"""When to stop, how many samples are too few, and which class is predicted: against enumeration and closed forms."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import binom, binomtest, multinomial

from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError
from support.voting import QUANTILES, false, voted

ALPHA = 0.05


def run(
    method: rs.Anytime, shares: np.ndarray, most: int, block: int, alpha: float, seed: int
) -> tuple[rs.Event, np.ndarray, np.ndarray]:
    """Elections of one law each that stop when `method` is done; their events, the votes spent, and all votes."""
    rng = np.random.default_rng(seed)
    selection = rng.multinomial(100, shares)
    counts, every = np.zeros_like(selection), np.zeros_like(selection)
    live = np.arange(len(shares))
    for _ in range(most // block):
        votes = rng.multinomial(block, shares)
        every += votes
        counts[live] += votes[live]
        samples = dataclasses.replace(voted(selection[live], counts[live]), adaptive=True)
        live = live[~method.done(samples, alpha, QUANTILES).numpy()]
        if not len(live):
            break
    every += rng.multinomial(most - every.sum(1), shares)
    samples = dataclasses.replace(voted(selection, counts), adaptive=True)
    return method.event(samples, alpha, QUANTILES), counts.sum(1), np.stack([selection, every])


@pytest.mark.parametrize("target", [0.0, 0.1])
def test_stopping_at_will_makes_no_more_false_certificates(target: float):
    shares = np.array([0.4, 0.35, 0.25])
    event, _, _ = run(rs.Anytime(target), np.tile(shares, (2000, 1)), 300, 15, ALPHA, seed=0)
    assert binom.sf(false(event, shares).sum() - 1, 2000, ALPHA) > 1e-6


def test_easy_inputs_take_few_samples():
    top = np.random.default_rng(0).beta(4, 1, 300)
    shares = np.stack([top, 0.7 * (1 - top), 0.3 * (1 - top)], 1)
    event, spent, (selection, every) = run(rs.Anytime(0.5), shares, 20_000, 1000, 1e-3, seed=1)
    fixed = rs.IntersectionUnion().event(voted(selection, every), 1e-3, QUANTILES)
    early, late = (int((QUANTILES.radius(one) >= 0.5).sum()) for one in (event, fixed))
    # The benchmark measures it on more: nearly the same inputs for a small part of the samples.
    assert late >= early >= 0.97 * late
    assert spent.mean() < 0.2 * 20_000


def test_inputs_out_of_reach_stop():
    # The true radius is 0.126, and the target 1.
    event, spent, _ = run(rs.Anytime(1.0), np.tile([0.55, 0.45], (20, 1)), 20_000, 500, 1e-3, seed=2)
    assert spent.max() <= 1000
    assert bool((QUANTILES.radius(event) < 1.0).all())


@pytest.mark.parametrize("alpha", [0.2, 1e-3, 1e-7])
@pytest.mark.parametrize("classes", [2, 10, 300])
def test_the_least_number_of_samples(alpha: float, classes: int):
    # Unanimous votes give a^(1/n) for the label, and rivals have the rest: it must be above one half.
    closed = {rs.Cohen(): alpha, rs.IntersectionUnion(): alpha / 2, rs.Bonferroni(): alpha / classes}
    for method, part in closed.items():
        assert rs.least_samples(method, alpha, classes, QUANTILES) == math.floor(math.log2(1 / part)) + 1


def test_the_least_number_of_samples_of_other_methods():
    assert rs.least_samples(rs.IntersectionUnion(), 1e-3, 10, QUANTILES) == 11
    soft = (rs.Softmax(1.0), rs.Sparsemax(2.0))
    gaussian = rs.Theorem(rs.Gaussian(0.25))
    for method in (
        rs.ClassPartition(),
        rs.LowVariance(),
        rs.Anytime(0.1),
        rs.IntersectionUnion(interval=rs.Hoeffding()),
    ):
        for maps in ((rs.Hardmax(),), soft):
            n = rs.least_samples(method, 1e-3, 10, gaussian, maps)
            assert 10 <= n <= 100
    # 7 log(2/a)/(3(n - 1)) < 1/2 with a = alpha/2.
    needed = math.floor(1 + 14 * math.log(4000) / 3) + 1
    assert rs.least_samples(rs.IntersectionUnion(), 1e-3, 10, gaussian, soft) == needed


def test_a_class_is_predicted_if_a_coin_would_not_lead_like_this():
    for first in range(40):
        for second in range(first + 1):
            counts = torch.tensor([[second // 2, first, 0, second]])
            expected = first + second > 0 and binomtest(first, first + second).pvalue <= ALPHA
            assert rs.top_class(counts, ALPHA).item() == (1 if expected else rs.ABSTAIN)


def test_predictions_are_wrong_no_more_often_than_alpha():
    n = 30
    counts = np.array([(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)])
    predicted = rs.top_class(torch.from_numpy(counts), ALPHA).numpy()
    assert (predicted == rs.ABSTAIN).any()
    for shares in ((0.5, 0.5, 0.0), (0.34, 0.33, 0.33), (0.45, 0.4, 0.15), (0.4, 0.3, 0.3)):
        wrong = (predicted != rs.ABSTAIN) & (predicted != 0)
        # Of two equal classes each is right; one of them is called wrong with half of alpha at most.
        assert multinomial.pmf(counts, n, shares)[wrong].sum() <= ALPHA / 2 + 1e-12


def test_the_largest_radius_that_n_samples_can_prove():
    # D28: 0.7996 at sigma = 0.25, n = 1e4 and alpha = 1e-3, and not 5.89.
    event = rs.Cohen().event(voted(np.array([[100, 0]]), np.array([[10_000, 0]])), 1e-3, QUANTILES)
    most = rs.Theorem(rs.Gaussian(0.25)).radius(event).item()
    assert most == pytest.approx(0.7996, abs=5e-5)
    assert most == pytest.approx(0.25 * ndtri(1e-3**1e-4), rel=1e-6)


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match="target radius"):
        rs.Anytime(-1.0)
    with pytest.raises(ArgumentError, match="two classes at least, got 1"):
        rs.least_samples(rs.Cohen(), 0.1, 1, QUANTILES)
    with pytest.raises(ArgumentError, match=r"\(0, 1\)"):
        rs.top_class(torch.tensor([[1, 2]]), 1.0)
