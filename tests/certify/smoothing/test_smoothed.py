"""The smoothed classifier: closed forms, arguments, bounds of the base network, warnings."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import scipy
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Kind
from lipkit.bound import Metric
from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, KindError, LipkitError, MetricError, NonFiniteError, RegionError, ShapeError
from support.unchecked import unchecked

SIGMA = 0.5


def wrong_type(value: Any) -> Any:
    """A value that type checkers would refuse."""
    return value


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(6, 2)


def net(classes: int = 3) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, classes))


def inputs(count: int = 8) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(3))


def distances(model: nn.Linear, x: Tensor) -> Tensor:
    """To the boundary of two classes, which is also that of the smoothed classifier, with hard votes."""
    w, b = (model.weight[0] - model.weight[1]).detach().double(), (model.bias[0] - model.bias[1]).detach().double()
    return (x.double() @ w + b).abs() / w.norm()


def test_radii_of_a_linear_classifier_stay_below_its_distances_and_come_near() -> None:
    model, x = linear(), inputs(60)
    alpha = 0.05
    found = rs.Smoothed(model, SIGMA, num_classes=2).certify(x, n=4000, alpha=alpha)
    true = distances(model, x)
    wrong = (found.label != rs.ABSTAIN) & ((found.label != model(x).argmax(1)) | (found.radius > true))
    # More than this many of 60 has a probability below a millionth, if each fails with alpha.
    assert int(wrong.sum()) <= scipy.stats.binom.isf(1e-6, len(x), alpha)
    # Where votes do not all agree, the shares are known to 0.03, which is 0.15 in units of sigma.
    split = true < SIGMA
    assert bool((found.radius[split] > true[split] - 0.2 * SIGMA).all())
    assert bool((found.radius >= 0).all())
    assert bool((found.radius[found.label == rs.ABSTAIN] == 0).all())


def test_one_result_has_a_row_for_each_input() -> None:
    smoothed = rs.Smoothed(net(), SIGMA, num_classes=3, simplex=rs.Softmax(0.1))
    found = smoothed.certify(inputs(), n0=20, n=500, alpha=0.01)
    assert found.label.shape == found.radius.shape == found.lower.shape == found.upper.shape == (8,)
    assert found.samples.tolist() == [500] * 8
    assert len(found.rule) == 8
    assert set(found.rule) <= set(smoothed.noise.rules)
    assert found.alpha == found.failure == 0.01
    assert "IntersectionUnion" in found.method
    sure = found.label != rs.ABSTAIN
    assert bool((found.lower[sure] > found.upper[sure]).all())


def test_radii_are_the_formula_of_the_counts() -> None:
    smoothed = rs.Smoothed(net(), SIGMA, num_classes=3)
    samples = smoothed.sample(inputs(), 20, 300)
    found = smoothed.radii(samples, 0.01, rs.Cohen())
    for i in range(8):
        top = int(samples.selection[i].argmax(1).bincount(minlength=3).argmax())
        count = int(samples.counts[i, top])
        lower = scipy.stats.beta.ppf(0.01, count, 300 - count + 1) if count else 0.0
        radius = SIGMA * scipy.stats.norm.ppf(lower) if lower > 0.5 else 0.0
        assert found.radius[i] == pytest.approx(radius, rel=1e-9)
        assert found.radius[i] <= radius * (1 + 1e-15)
        assert int(found.label[i]) == (top if radius > 0 else rs.ABSTAIN)


def test_samples_do_not_depend_on_the_batch_or_the_order() -> None:
    smoothed = rs.Smoothed(net(), SIGMA, num_classes=3, simplex=[rs.Softmax(1.0), rs.Softmax(0.1)])
    x = inputs()
    whole = smoothed.sample(x, 10, 100, block=32)
    for i in (5, 0):
        one = smoothed.sample(x[i : i + 1], 10, 100, block=32, indices=[i])
        assert torch.equal(one.counts[0], whole.counts[i])
        assert torch.equal(one.selection[0], whole.selection[i])
        assert all(torch.equal(a.first[0], b.first[i]) for a, b in zip(one.moments, whole.moments, strict=True))
    other = smoothed.sample(x, 10, 100, block=32, seed=1)
    assert not torch.equal(other.selection, whole.selection)


def test_any_function_is_a_model_and_autocast_counts() -> None:
    model, x = net(), inputs()
    plain = rs.Smoothed(model.forward, SIGMA, num_classes=3).certify(x, 10, 200, 0.01)
    module = rs.Smoothed(model, SIGMA, num_classes=3).certify(x, 10, 200, 0.01)
    assert torch.equal(plain.radius, module.radius)
    with torch.autocast("cpu", torch.bfloat16):
        cast = rs.Smoothed(model, SIGMA, num_classes=3).sample(x, 10, 200)
    # These logits have the digits of bfloat16.
    assert torch.equal(cast.selection.bfloat16().float(), cast.selection)


def test_predictions_compare_the_two_largest_counts() -> None:
    model, x = linear(), inputs(60)
    found = rs.Smoothed(model, SIGMA, num_classes=2).predict(x, n=400, alpha=0.01)
    true = distances(model, x)
    sure = found != rs.ABSTAIN
    wrong = sure & (found != model(x).argmax(1))
    assert int(wrong.sum()) <= scipy.stats.binom.isf(1e-6, len(x), 0.01)
    # A share of 0.62 gives a p-value of 2e-6 with 400 votes.
    assert bool(sure[true > 0.6 * SIGMA].all())
    assert not bool(sure.all())
    soft = rs.Smoothed(model, SIGMA, num_classes=2, simplex=rs.Softmax(0.05)).predict(x, n=2000, alpha=0.01)
    assert int(((soft != rs.ABSTAIN) & (soft != model(x).argmax(1))).sum()) <= scipy.stats.binom.isf(1e-6, 60, 0.01)
    assert bool((soft != rs.ABSTAIN)[true > SIGMA].all())


def test_easy_inputs_stop_early() -> None:
    model, x = linear(), inputs(60)
    smoothed = rs.Smoothed(model, SIGMA, num_classes=2)
    method = rs.Anytime(target=0.5 * SIGMA)
    found = smoothed.certify(x, 20, 4096, 0.05, method, block=64)
    true = distances(model, x)
    wrong = (found.label != rs.ABSTAIN) & ((found.label != model(x).argmax(1)) | (found.radius > true))
    assert int(wrong.sum()) <= scipy.stats.binom.isf(1e-6, len(x), 0.05)
    # A share of 0.97 proves 0.5 sigma, a share above 0.69, with few votes; one near it takes all of them.
    assert bool((found.samples[true > 2 * SIGMA] <= 256).all())
    assert set(found.samples.tolist()) <= {64 * 2**i for i in range(7)}
    assert bool((found.radius[true > 2 * SIGMA] >= method.target).all())
    samples = smoothed.sample(x, 20, 4096, block=64, stop=lambda one: bool(one.spent >= 128))
    assert samples.spent.tolist() == [128] * 60
    with pytest.raises(ArgumentError, match="chose the number of these samples"):
        smoothed.radii(samples, 0.05)


def test_a_number_of_samples_that_proves_nothing_is_named() -> None:
    smoothed = rs.Smoothed(net(), SIGMA, num_classes=3)
    # All of n votes agree: alpha^(1/n) > 1/2 needs n >= 10 for alpha = 0.001.
    with pytest.warns(rs.TooFewSamplesWarning, match=r"n=9 samples prove nothing at alpha=0\.001.*give n=10 at least"):
        smoothed.certify(inputs(1), 5, 9, 1e-3, rs.Cohen())
    smoothed.certify(inputs(1), 5, 10, 1e-3, rs.Cohen())
    with pytest.warns(rs.TooFewSamplesWarning, match="give n=") as caught:
        smoothed.certify(inputs(1), 5, 2, 1e-3)
    enough = int(re.findall(r"give n=(\d+)", str(caught[0].message))[0])
    smoothed.certify(inputs(1), 5, enough, 1e-3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma": 0.0}, "sigma is a finite number > 0, as a Python number, got 0.0"),
        ({"sigma": math.nan}, "sigma is a finite number > 0"),
        ({"sigma": None}, "either sigma"),
        ({"noise": rs.Gaussian(1.0)}, "either sigma"),
        ({"sigma": None, "noise": "gaussian"}, "`noise` is a law"),
        ({"num_classes": 1}, "2 or more, got 1"),
        ({"num_classes": 2.0}, "2 or more"),
        ({"simplex": []}, "`simplex` is a map"),
        ({"simplex": [rs.Softmax(), rs.Softmax()]}, "several different ones"),
        ({"model": 3}, "A model is a function"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"model": net(), "sigma": 0.5, "num_classes": 3, **wrong}
    with unchecked(), pytest.raises(ArgumentError, match=re.escape(words)):
        rs.Smoothed(**given)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"x": torch.zeros(2, 6, dtype=torch.int64)}, ArgumentError, "floating-point numbers, got torch.int64"),
        ({"x": torch.full((2, 6), math.nan)}, NonFiniteError, "NaN or infinite"),
        ({"x": torch.zeros(6)}, ShapeError, "give one as x[None]"),
        ({"x": torch.zeros(0, 6)}, ShapeError, "with one at least"),
        ({"n": 0}, ArgumentError, "n is a whole number of samples >= 1, got 0"),
        ({"n0": 0}, ArgumentError, "n0 is a whole number"),
        ({"n": 1e5}, ArgumentError, "n is a whole number"),
        ({"block": 0}, ArgumentError, "block is a whole number"),
        ({"alpha": 0.0}, ArgumentError, "numbers in (0, 1)"),
        ({"alpha": 1.0}, ArgumentError, "numbers in (0, 1)"),
        ({"seed": -1}, ArgumentError, "[0, 2^63)"),
        ({"indices": [0]}, ArgumentError, "for each of 2 inputs"),
        ({"indices": [0, -1]}, ArgumentError, "whole number >= 0"),
        ({"indices": [0, 0.5]}, ArgumentError, "whole number >= 0"),
        ({"indices": [0, math.nan]}, ArgumentError, "whole number >= 0"),
        ({"method": "cohen"}, ArgumentError, "`method` is a smoothing method"),
    ],
)
def test_arguments_are_checked(wrong: dict[str, Any], error: type[LipkitError], words: str) -> None:
    given: dict[str, Any] = {"x": inputs(2), "n0": 5, "n": 100, **wrong}
    with unchecked(), pytest.raises(error, match=re.escape(words)):
        rs.Smoothed(net(), SIGMA, num_classes=3).certify(**given)


def test_a_model_with_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"expected logits of shape \(5, 4\)"):
        rs.Smoothed(net(), SIGMA, num_classes=4).certify(inputs(2), 5, 100)


def test_a_bound_needs_votes_with_a_constant() -> None:
    model, x = net(), inputs(2)
    bound = lipkit.lipschitz(model, x[:1])
    with pytest.raises(ArgumentError, match=r"votes by Hardmax.*rs\.Softmax.*rs\.Sparsemax"):
        rs.Smoothed(model, SIGMA, num_classes=3).certify(x, 5, 100, bound=bound)
    both = rs.Smoothed(model, SIGMA, num_classes=3, simplex=[rs.Hardmax(), rs.Softmax(0.5)])
    for method in (rs.Cohen(), rs.Anytime(0.1)):
        with pytest.raises(ArgumentError, match=f"which {type(method).__name__} uses"):
            both.certify(x, 5, 100, 0.05, method, bound)
    # This one may choose either map for an input.
    both.certify(x, 5, 100, 0.05, rs.LowVariance(), bound)


def test_a_bound_never_makes_a_radius_smaller() -> None:
    model, x = net(), inputs()
    smoothed = rs.Smoothed(model, SIGMA, num_classes=3, simplex=rs.Softmax(0.5))
    bound = lipkit.lipschitz(model, x[:1])
    samples = smoothed.sample(x, 20, 1000)
    with_bound, without = smoothed.radii(samples, 0.01, bound=bound), smoothed.radii(samples, 0.01)
    assert bool((with_bound.radius >= without.radius).all())
    assert with_bound.failure == pytest.approx(0.01 + bound.failure)


def test_bounds_that_say_something_else_are_refused() -> None:
    model, x = net(), inputs(2)
    smoothed = rs.Smoothed(model, SIGMA, num_classes=3, simplex=rs.Softmax())
    bound = lipkit.lipschitz(model, x[:1])

    def refused(error: type[LipkitError], words: str, wrong: Any) -> None:
        with unchecked(), pytest.raises(error, match=words):
            smoothed.certify(x, 5, 100, bound=wrong)

    refused(KindError, "Only an exact or upper bound", replace(bound, kind=Kind.ESTIMATE, lower=None))
    refused(ArgumentError, "needs a Bound, got float", 1.0)
    refused(MetricError, "l2 to l2", Bound.from_value(1.0, Kind.UPPER, "stated", Metric(1, 2)))
    refused(MetricError, "one constant of all logits", lipkit.pairwise(model, x[:1]))
    refused(RegionError, "Noise leaves every bounded region", lipkit.lipschitz(model, x[:1], region=Ball(x[0], 1.0)))
    torch.manual_seed(9)
    refused(ArgumentError, "another network", lipkit.lipschitz(nn.Linear(6, 3), x[:1]))
    refused(ShapeError, r"inputs of shape \(7,\)", lipkit.lipschitz(nn.Linear(7, 3), torch.zeros(1, 7)))
    laplace = rs.Smoothed(model, num_classes=3, noise=rs.Laplace(0.5), simplex=rs.Softmax())
    with pytest.raises(ArgumentError, match="about Gaussian noise"):
        laplace.certify(x, 5, 100, bound=bound)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="half precision"):
        smoothed.certify(x, 5, 100, bound=bound)
    # What somebody states cannot be compared.
    smoothed.certify(x, 5, 100, bound=Bound.from_value(10.0, Kind.UPPER, "stated"))


def test_radii_in_another_norm_are_through_their_own() -> None:
    found = rs.Smoothed(net(), SIGMA, num_classes=3).certify(inputs(), 10, 500, 0.01)
    through = found.in_norm(math.inf, 6)
    assert (through.p, through.through) == (math.inf, 2.0)
    torch.testing.assert_close(through.radius, found.radius / math.sqrt(6), rtol=1e-12, atol=0.0)
    assert bool((through.radius * math.sqrt(6) <= found.radius * (1 + 1e-15)).all())
    labels = found.label.clamp(min=0)
    assert found.certified(labels, 0.1).tolist() == [
        r > 0.1 and k >= 0 for r, k in zip(found.radius.tolist(), found.label.tolist(), strict=True)
    ]


def test_samples_of_another_noise_are_refused() -> None:
    """Votes at 0.25 and the formula at 1 would certify four times too far."""
    samples = rs.Smoothed(net(), 0.25, num_classes=3).sample(inputs(2), n0=10, n=100)
    with pytest.raises(ArgumentError, match=r"drawn with Gaussian\(sigma=0.25\), and say nothing of Gaussian"):
        rs.Smoothed(net(), 1.0, num_classes=3).radii(samples)


def test_a_function_takes_a_stated_bound_only() -> None:
    model, x = net(), inputs(2)
    bound = lipkit.lipschitz(model, x[:1])
    smoothed = rs.Smoothed(model.forward, SIGMA, num_classes=3, simplex=rs.Softmax(0.1))
    with pytest.raises(ArgumentError, match="Nobody can tell whether this bound is of the function"):
        smoothed.certify(x, n=100, bound=bound)
    stated = Bound.from_value(bound.value.detach(), Kind.UPPER, "as computed")
    assert len(smoothed.certify(x, n=100, bound=stated)) == 2


def test_constants_are_those_of_shares_of_the_mass() -> None:
    """Votes of mass r and constant L are shares of constant L / r; each input has the constant of its own map."""
    lower, upper = torch.tensor([0.7, 0.7]).double(), torch.tensor([[1.0, 0.2], [1.0, 0.2]]).double()
    maps = rs.Sparsemax(0.5), rs.Sparsemax(3.0, 2.0)
    found = rs.Theorem(rs.Gaussian(SIGMA), 2.0).radii(lower, upper, maps).value
    expected = [(1.0 * 2 / 0.5, math.sqrt(2) * 2 / 0.5), (0.5 * 2 / 3, math.sqrt(2) / 2 * 2 / 3)]
    for i, (coordinate, pair) in enumerate(expected):
        constants = rs.Constants(*(torch.tensor([one], dtype=torch.float64) for one in (coordinate, pair)))
        alone = rs.Gaussian(SIGMA).radii(lower[i : i + 1], upper[i : i + 1], constants).value
        # Constants are rounded up by a few digits, and quantiles are moved outward by 1e-11 at most.
        assert float(found[i, 1]) == pytest.approx(float(alone[0, 1]), abs=1e-9)


def test_the_chosen_votes_are_told() -> None:
    maps = rs.Hardmax(), rs.Softmax(0.1), rs.Softmax(1.0)
    found = rs.Smoothed(net(), SIGMA, num_classes=3, simplex=maps).certify(inputs(3), n=300, method=rs.LowVariance())
    assert len(found.maps) == 3
    assert set(found.maps) <= set(maps)


def test_a_model_that_fails_is_told_with_the_shape_it_got() -> None:
    with pytest.raises(ShapeError, match=r"noisy copies of one input, of shape \(10, 4\) and torch.float32"):
        rs.Smoothed(net(), SIGMA, num_classes=3).certify(torch.zeros(3, 4), n0=10, n=20)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: rs.Smoothed(net(), wrong_type(rs.Laplace(0.2)), num_classes=3), r"as noise=Laplace\(scale=0.2\)"),
        (lambda: rs.Smoothed(net(), SIGMA, num_classes=3, simplex=wrong_type(rs.Softmax)), "`simplex` is a map"),
        (lambda: rs.Smoothed(net(), wrong_type(True), num_classes=3), "sigma is a finite number > 0"),
        (lambda: rs.Anytime(wrong_type("a")), "A target radius is a number >= 0, got 'a'"),
    ],
)
def test_mistakes_of_types_get_a_sentence(wrong: Any, said: str) -> None:
    with unchecked(), pytest.raises(ArgumentError, match=said):
        wrong()
