"""Certificates of known elections: how often they are false, by enumeration and simulation, and what they are worth."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom, multinomial

from lipkit.certify import smoothing as rs
from lipkit.certify.confidence_intervals import lower_limits, upper_limits
from lipkit.certify.smoothing.samples import Moments, Samples
from lipkit.errors import ArgumentError
from support.voting import QUANTILES, drawn, false, mean_radius, voted

ALPHA = 0.05
METHODS = [
    rs.Cohen(),
    rs.IntersectionUnion(),
    rs.IntersectionUnion(0.8),
    rs.IntersectionUnion(interval=rs.Hoeffding()),
    rs.IntersectionUnion(interval=rs.EmpiricalBernstein()),
    rs.Bonferroni(),
    rs.ClassPartition(),
    rs.LowVariance(),
    rs.Anytime(0.5),
]
CLOSE = np.array([0.36, 0.35, 0.29])
TEN = np.array([0.45, 0.2, 0.1, 0.05, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01])
THOUSAND = np.array([0.3, *[0.7 / 999] * 999])


def too_often(wrong: np.ndarray) -> bool:
    """Whether an error probability of alpha would show that many errors less than once in a million."""
    return bool(binom.sf(wrong.sum() - 1, len(wrong), ALPHA) < 1e-6)


def every(n: int, classes: int = 3) -> np.ndarray:
    """All ways in which n votes can fall on the classes."""
    rows = [row for row in product(range(n + 1), repeat=classes - 1) if sum(row) <= n]
    return np.array([(*row, n - sum(row)) for row in rows])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_no_election_of_three_classes_is_certified_falsely_with_more_than_alpha(method: rs.Method):
    # Whatever the samples that choose look like: given them, the rest are still independent.
    chosen = [(10, 0, 0), (0, 10, 0), (0, 0, 10), (5, 5, 0), (4, 3, 3), (1, 4, 5)]
    laws = [(0.36, 0.35, 0.29), (0.5, 0.05, 0.45), (0.9, 0.06, 0.04), (0.5, 0.25, 0.25), (0.4, 0.32, 0.28)]
    for n in (7, 19, 40):
        counts = every(n)
        for selection in chosen:
            event = method.event(voted(np.tile(selection, (len(counts), 1)), counts), ALPHA, QUANTILES)
            for shares in laws:
                weights = multinomial.pmf(counts, n, shares)
                # The weights are good to about 1e-13.
                assert weights[false(event, np.array(shares))].sum() <= ALPHA + 1e-12


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize(("shares", "runs"), [(CLOSE, 20_000), (TEN, 4_000), (THOUSAND, 400)], ids=["3", "10", "1000"])
def test_certificates_are_false_no_more_often_than_alpha(method: rs.Method, shares: np.ndarray, runs: int):
    samples = drawn(shares, 100, 1000, runs, seed=len(shares))
    assert not too_often(false(method.event(samples, ALPHA, QUANTILES), shares))


def fixed_runner_up(samples: Samples, alpha: float) -> rs.Event:
    """The top two of the samples that choose, and one bound for each: the rule that errata.md warns of."""
    chosen = torch.nn.functional.one_hot(samples.selection.argmax(-1), samples.counts.shape[1]).sum(1)
    top = chosen.argsort(dim=1, descending=True, stable=True)[:, :2]
    counts, n = samples.counts.gather(1, top).numpy(), samples.spent.numpy()
    lower = torch.from_numpy(lower_limits(counts[:, 0], n, alpha / 2))
    rival = torch.from_numpy(upper_limits(counts[:, 1], n, alpha / 2))
    upper = torch.zeros_like(samples.counts, dtype=torch.float64).scatter(1, top[:, 1:], rival[:, None])
    return rs.Event(top[:, 0], lower, upper, (rs.Hardmax(),) * len(lower))


def test_a_runner_up_that_is_fixed_beforehand_makes_false_certificates():
    wrong = false(fixed_runner_up(drawn(CLOSE, 100, 1000, 20_000, seed=0), ALPHA), CLOSE)
    # Exactly 12.2 % if equal votes go to the first class; four standard errors of 20,000 runs are 0.9 %.
    assert too_often(wrong)
    assert wrong.mean() == pytest.approx(0.122, abs=0.0093)


def test_the_published_counter_example_covers_the_true_gap():
    # p = (0.5, 0.05, 0.45), n = 10, limits at alpha/2 for the classes 0 and 1 alone.
    shares, n = np.array([0.5, 0.05, 0.45]), 10
    counts = every(n)
    weights = multinomial.pmf(counts, n, shares)
    gap = lower_limits(counts[:, 0], np.array(n), ALPHA / 2) - upper_limits(counts[:, 1], np.array(n), ALPHA / 2)
    observed = (counts[:, 0] - counts[:, 1:].max(1)) / n
    # What was printed: the limit is below the gap that was observed.
    assert weights[observed > gap].sum() == pytest.approx(0.7890, abs=5e-5)
    # What a certificate needs: the limit is below the true gap.
    assert weights[gap <= 0.05].sum() == pytest.approx(0.9537, abs=5e-5)
    # With 40 votes it does fail; all rivals together do not, at the same level for each.
    counts, n = every(40), np.array(40)
    weights = multinomial.pmf(counts, 40, shares)
    lower, upper = lower_limits(counts[:, 0], n, ALPHA / 2), upper_limits(counts, n, ALPHA / 2)
    assert weights[lower - upper[:, 1] <= 0.05].sum() == pytest.approx(0.1038, abs=5e-5)
    assert weights[lower - upper[:, 1:].max(1) <= 0.05].sum() >= 0.95


@given(st.data())
def test_no_radius_is_below_that_of_bonferroni_or_of_a_partition(data: st.DataObject):
    classes = data.draw(st.integers(2, 12))
    votes = st.lists(st.integers(0, 400), min_size=classes, max_size=classes)
    selection = np.array([data.draw(votes.filter(any))])
    counts = np.array([data.draw(votes)])
    alpha = data.draw(st.sampled_from([0.3, 0.05, 1e-3, 1e-8]))
    samples = voted(selection, counts)
    ours = rs.IntersectionUnion().event(samples, alpha, QUANTILES)
    for method in (rs.Bonferroni(), rs.ClassPartition()):
        theirs = method.event(samples, alpha, QUANTILES)
        assert torch.equal(ours.label, theirs.label)
        # Limits of one level are equal to the bit, as they come from the same function.
        assert bool(ours.lower >= theirs.lower)
        assert bool((ours.upper <= theirs.upper).all())


def test_all_of_alpha_for_the_label_is_the_method_of_cohen():
    samples = drawn(TEN, 100, 1000, 50, seed=1)
    one, other = (method.event(samples, ALPHA, QUANTILES) for method in (rs.IntersectionUnion(1.0), rs.Cohen()))
    assert torch.equal(one.lower, other.lower)
    assert torch.equal(one.upper, other.upper)
    # At most sigma Phi^-1(alpha^(1/n)), the value of unanimous votes; E62: 3.1986 for n = 1e4 and alpha = 1e-3.
    unanimous = voted(np.array([[100, 0]]), np.array([[10_000, 0]]))
    assert mean_radius(rs.Cohen().event(unanimous, 1e-3, QUANTILES)) == pytest.approx(3.1986, abs=5e-5)


@pytest.mark.parametrize(
    ("shares", "n", "alpha", "runs", "expected"),
    [(TEN, 10_000, 1e-3, 2000, (0.627, 0.616, 0.554)), (THOUSAND, 2000, 0.05, 200, (1.88, 1.63, 0.0))],
    ids=["10", "1000"],
)
def test_what_the_methods_are_worth(shares: np.ndarray, n: int, alpha: float, runs: int, expected: tuple[float, ...]):
    samples = drawn(shares, 100, n, runs, seed=2)
    for method, mean in zip((rs.IntersectionUnion(), rs.Bonferroni(), rs.ClassPartition()), expected, strict=True):
        # Addendum A1, 2R/sigma; it rounds to three digits. One run of a partition deviates by 0.1, of 1000 classes by
        # 0.04: four standard errors are 0.0093 and 0.011.
        error = 0.01 if runs == 2000 else 0.016
        assert 2 * mean_radius(method.event(samples, alpha, QUANTILES)) == pytest.approx(mean, abs=error)


def test_a_partition_by_hand():
    # 40 votes: label 0 has 20, the runner-up 8; {2, 3, 4} have 12 > 8, so 2 leaves, and 3 and 4 stay with 6.
    counts = np.array([[60, 10, 9, 8, 7]])
    event = rs.ClassPartition().event(voted(np.array([[20, 8, 6, 4, 2]]), counts), ALPHA, QUANTILES)
    part = ALPHA / 4 * (1 - 2**-50)
    groups = np.array([10, 9, 15, 15])
    assert event.lower.item() == lower_limits(np.array(60), np.array(94), part)
    np.testing.assert_array_equal(event.upper[0, 1:], upper_limits(groups, np.array(94), part))


def patterns(logits: list[list[float]], chances: list[float], maps: tuple[rs.SimplexMap, ...], runs: int, seed: int):
    """Samples of a law on a few logit vectors, whose shares are known, and those shares of each map."""
    rng = np.random.default_rng(seed)
    rows, n0, n = torch.tensor(logits), 30, 500
    numbers = torch.from_numpy(rng.multinomial(n, chances, runs)).double()
    selection = rows[torch.from_numpy(rng.choice(len(rows), (runs, n0), p=chances))]
    counts = (numbers @ rs.Hardmax()(rows).double()).long()
    tracked = torch.arange(rows.shape[1]).expand(runs, -1)
    moments, shares = [], {}
    for one in maps:
        votes = torch.nn.functional.pad(one(rows).double(), (0, 1))
        moments.append(Moments(one, numbers @ votes, numbers @ votes.square()))
        shares[one] = torch.tensor(chances).double() @ votes[:, :-1] / one.mass
    shares[rs.Hardmax()] = torch.tensor(chances).double() @ rs.Hardmax()(rows).double()
    return Samples(selection, counts, counts.sum(1), tracked, tuple(moments), (*maps, rs.Hardmax())), shares


MAPS = (rs.Softmax(0.5), rs.Sparsemax(2.0), rs.Softmax(3.0))


@pytest.mark.parametrize("method", [rs.IntersectionUnion(), rs.LowVariance(), rs.Bonferroni(), rs.Cohen()], ids=str)
def test_soft_votes_are_certified_falsely_no_more_often_than_alpha(method: rs.Method):
    logits = [[2.2, 1.0, 0.0], [0.3, 0.5, 0.4], [2.0, 0.0, 1.0]]
    samples, shares = patterns(logits, [0.5, 0.3, 0.2], MAPS, 4000, seed=4)
    event = method.event(samples, ALPHA, QUANTILES)
    radius = QUANTILES.radius(event).numpy()
    truth = []
    for label, simplex in zip(event.label.tolist(), event.maps, strict=True):
        rivals = np.delete(shares[simplex].numpy(), label)
        truth.append((ndtri(shares[simplex][label].item()) - ndtri(rivals.max())) / 2)
    assert (radius > 0).mean() > 0.3, "the test is about certificates"
    assert not too_often((radius > 0) & (radius > np.array(truth)))


def test_the_map_is_chosen_by_the_expected_radius():
    # Logits that hardly differ: hard votes always agree, soft ones never win. And votes of one class in two samples of
    # three, but with a lead that softmax turns into nothing.
    samples, _ = patterns([[0.1, 0.0], [0.1, 0.05]], [0.5, 0.5], (rs.Softmax(1.0),), 20, seed=0)
    assert set(rs.LowVariance().event(samples, ALPHA, QUANTILES).maps) == {rs.Hardmax()}
    # Hard votes are split; soft ones do not scatter and prove the small lead.
    samples, _ = patterns([[0.0, 0.1], [3.0, 0.0]], [0.5, 0.5], (rs.Softmax(1.0),), 20, seed=0)
    event = rs.LowVariance().event(samples, ALPHA, QUANTILES)
    assert set(event.maps) == {rs.Softmax(1.0)}
    assert bool((QUANTILES.radius(event) > 0).all())


def test_the_samples_that_prove_choose_nothing():
    logits = [[0.0, 0.1, 0.0], [3.0, 0.0, 0.0], [0.2, 0.0, 1.0]]
    samples, _ = patterns(logits, [0.5, 0.3, 0.2], MAPS, 200, seed=6)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    others = Samples(
        samples.selection,
        samples.counts[order],
        samples.spent,
        samples.tracked,
        tuple(Moments(one.map, one.first[order], one.second[order]) for one in samples.moments),
        samples.maps,
    )
    first, second = (rs.LowVariance().event(one, ALPHA, QUANTILES) for one in (samples, others))
    assert len(set(first.maps)) > 1, "the test is about choices"
    assert first.maps == second.maps
    assert torch.equal(first.label, second.label)
    assert not torch.equal(first.lower, second.lower)


def test_each_input_has_the_constants_of_its_map():
    logits = [[0.0, 0.1, 0.0], [3.0, 0.0, 0.0], [0.2, 0.0, 1.0]]
    samples, _ = patterns(logits, [0.5, 0.3, 0.2], MAPS, 100, seed=6)
    event = rs.LowVariance().event(samples, ALPHA, QUANTILES)
    soft = torch.tensor([one != rs.Hardmax() for one in event.maps])
    assert 0 < int(soft.sum()) < 100
    alone = rs.Theorem(rs.Gaussian(1.0)).radius(event)
    for constant in (0.0, 0.3, 1e-3):
        radius = rs.Theorem(rs.Gaussian(1.0), constant).radius(event)
        # Hard votes have no constant, and nothing is gained; soft votes go further, where they prove anything.
        assert torch.equal(radius[~soft].clamp(min=0), alone[~soft].clamp(min=0))
        assert bool((radius >= alone).all())
        assert bool((radius[soft & (alone > 0)] > alone[soft & (alone > 0)]).all())


def test_what_is_not_tracked_is_bounded_by_its_sum():
    simplex = rs.Softmax(1.0)
    votes = torch.tensor([[0.5, 0.2, 0.2, 0.1]], dtype=torch.float64)
    n, kept = 1000, torch.tensor([[2, 0]])
    rest = votes[:, [1, 3]].sum(1, keepdim=True)
    entries = torch.cat([votes.gather(1, kept), rest], 1)
    moments = Moments(simplex, n * entries, n * entries.square())
    # The first class leads among those that are tracked; among all it would be the second.
    selection = torch.tensor([[[1.0, 2.0, 0.5, 0.0]]])
    samples = Samples(selection, torch.tensor([[n, 0, 0, 0]]), torch.tensor([n]), kept, (moments,), (simplex,))
    event = rs.IntersectionUnion().event(samples, ALPHA, QUANTILES)
    width = 7 * np.log(4 / ALPHA) / (3 * 999)
    assert event.label.item() == 0
    # The sums carry a thousand roundings; the root of such a variance is 1e-8 or more. The label loses 20 roundings of
    # float32.
    assert event.lower.item() == pytest.approx(0.5 - width, abs=1.4e-6)
    assert event.upper[0].tolist() == pytest.approx([1.0, 0.3 + width, 0.2 + width, 0.3 + width], abs=1e-7)


def test_wrong_arguments_are_named():
    samples = drawn(TEN, 10, 100, 3, seed=0)
    for share in (0.0, 1.5):
        with pytest.raises(ArgumentError, match=r"\(0, 1\], got"):
            rs.IntersectionUnion(share)
    with pytest.raises(ArgumentError, match=r"\(0, 1\)"):
        rs.IntersectionUnion().event(samples, 0.0, QUANTILES)
    stopped = Samples(samples.selection, samples.counts, samples.spent, samples.tracked, adaptive=True)
    for method in (rs.Cohen(), rs.IntersectionUnion(), rs.ClassPartition(), rs.LowVariance()):
        with pytest.raises(ArgumentError, match="needs a fixed number"):
            method.event(stopped, ALPHA, QUANTILES)
    rs.Anytime(1.0).event(stopped, ALPHA, QUANTILES)
    soft = Samples(samples.selection, samples.counts, samples.spent, samples.tracked, maps=(rs.Softmax(1.0),))
    with pytest.raises(ArgumentError, match="hold no votes of"):
        rs.IntersectionUnion().event(soft, ALPHA, QUANTILES)
    none = Samples(samples.selection[:, :0], samples.counts, samples.spent, samples.tracked)
    with pytest.raises(ArgumentError, match="n0 >= 1"):
        rs.Cohen().event(none, ALPHA, QUANTILES)
    for method in (rs.IntersectionUnion(interval=rs.SubGaussian(0.1)), rs.Cohen(rs.SubGaussian(0.0))):
        with pytest.raises(ArgumentError, match="Votes of Hardmax jump"):
            method.event(samples, ALPHA, QUANTILES)


def test_votes_that_sum_to_more_than_1_by_rounding_certify_no_more_than_their_shares():
    # As of a network with almost no slope: float32 votes near 0.6 and 0.4, a thousand times.
    n, votes = 1000, torch.tensor([[0.6, 0.4 + 2.0**-22, 0.0]]).double()
    shares = votes[0].numpy()
    assert shares.sum() > 1 + 2.0**-23
    moments = Moments(rs.Softmax(1.0), n * votes, n * votes.square())
    samples = Samples(
        torch.tensor([[[1.0, 0.0]]]), torch.tensor([[n, 0]]), torch.tensor([n]), torch.tensor([[0, 1]]), (moments,),
        (rs.Softmax(1.0),),
    )  # fmt: skip
    for method in (rs.Cohen(rs.SubGaussian(0.0)), rs.IntersectionUnion(interval=rs.SubGaussian(0.0))):
        # A law that caps rivals at 1 - lower itself.
        law = rs.Theorem(rs.Gaussian(1.0))
        found = law.radius(method.event(samples, ALPHA, law)).item()
        assert 0.25 < found <= (ndtri(shares[0]) - ndtri(shares[1])) / 2


def test_limits_of_votes_do_not_depend_on_their_mass():
    first, second = torch.tensor([[60.0, 30.0, 10.0, 0.0]]).double(), torch.tensor([[40.0, 12.0, 2.0, 0.0]]).double()
    events = [
        rs.IntersectionUnion().event(
            Samples(
                torch.tensor([[[1e3, 0.0, 0.0]]]), torch.tensor([[100, 0, 0]]), torch.tensor([100]),
                torch.arange(3)[None], (Moments(one, one.mass * first, one.mass**2 * second),), (one,),
            ),
            ALPHA, QUANTILES,
        )
        for one in (rs.Sparsemax(), rs.Sparsemax(mass=4.0), rs.Sparsemax(mass=0.25))
    ]  # fmt: skip
    for event in events[1:]:
        assert torch.equal(event.lower, events[0].lower)
        assert torch.equal(event.upper, events[0].upper)
