"""KR, HKR and cross-entropy over Lipschitz functions on a line: what theory says of their minima, computed.

1-Lipschitz functions on sorted points are sums of increments within the gaps, so minimising a convex loss over them is
a problem with box constraints, and a linear one a linear program.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from scipy.stats import norm, wasserstein_distance
from torch import Tensor

from lipkit.losses import HKR, KR, Hinge, MulticlassHKR, MulticlassKR, ReweightedKR, TauBCE
from lipkit.losses.kantorovich.reweighted import balanced_bias

Points = NDArray[np.floating]


def minimised(
    points: Points, loss: Callable[[Tensor], Tensor], L: float = 1.0, ftol: float = 1e-16
) -> tuple[Tensor, float]:
    """The L-Lipschitz function on sorted points with the smallest loss, and that loss: L-BFGS within a box."""
    gaps = torch.tensor(L * np.diff(points))

    def function(free: Tensor) -> Tensor:
        return torch.cat([free[:1], free[:1] + (free[1:] * gaps).cumsum(0)])

    def objective(free: Points) -> tuple[float, Points]:
        x = torch.tensor(free, requires_grad=True)
        value = loss(function(x))
        (gradient,) = torch.autograd.grad(value, x)
        return value.item(), gradient.numpy()

    start = np.zeros(len(points))
    bounds = [(None, None), *[(-1.0, 1.0)] * (len(points) - 1)]
    options = {"maxiter": 20000, "maxfun": 50000, "ftol": ftol, "gtol": 1e-11}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return function(torch.tensor(found.x)), float(found.fun)


@pytest.fixture
def line() -> tuple[Points, Tensor]:
    """Twelve points in random order of class, six of each."""
    rng = np.random.default_rng(3)
    points = np.sort(rng.uniform(-2, 2, 12))
    return points, torch.tensor(rng.permutation([1] * 6 + [0] * 6))


def w1(points: Points, labels: Tensor) -> float:
    return float(wasserstein_distance(points[labels.numpy() == 1], points[labels.numpy() == 0]))


def test_the_smallest_kr_loss_is_minus_the_transport_cost(line: tuple[Points, Tensor]):
    points, labels = line
    _, value = minimised(points, lambda f: KR()(f, labels))
    # A linear problem over a box: L-BFGS ends at a corner, up to rounding.
    assert value == pytest.approx(-w1(points, labels), abs=1e-9)
    _, value = minimised(points, lambda f: KR()(f, labels), L=2.5)
    assert value == pytest.approx(-2.5 * w1(points, labels), abs=1e-9)


def test_the_printed_sign_of_the_minimum(line: tuple[Points, Tensor]):
    # Equation 4.12 sets max (E_P f - E_Q f), min E[-y f] and W_1 equal; the minimum is negative.
    points, labels = line
    _, value = minimised(points, lambda f: KR()(f, labels))
    assert value < 0 < w1(points, labels)


def best_accuracy(f: Points, labels: Tensor) -> float:
    """Over all thresholds: just below and just above every value (the solver is exact to 1e-9)."""
    thresholds = np.concatenate([f - 1e-6, f + 1e-6])
    return max(float(((f > t) == (labels.numpy() == 1)).mean()) for t in thresholds)


def test_critics_classify_hardly_better_than_chance():
    # n atoms of P at 4 (i - 1), n of Q at 4 i - 1. Potentials fall by 3 within each pair and may rise by 1 to the next,
    # so they fall by 2 or more from pair to pair: an interval of length 3 holds at most two: n + 2 are right.
    n = 20
    points = np.sort(np.concatenate([4.0 * np.arange(n), 4.0 * np.arange(n) + 3]))
    labels = torch.tensor([1, 0] * n)
    cost = np.where(labels.numpy() == 1, -1 / n, 1 / n)
    step = np.diff(np.eye(2 * n), axis=0)
    sides = np.concatenate([step, -step])
    caps = np.concatenate([np.diff(points)] * 2)
    pinned = [(0.0, 0.0), *[(None, None)] * (2 * n - 1)]
    best = linprog(cost, sides, caps, bounds=pinned)
    assert -best.fun == pytest.approx(3.0)
    rng = np.random.default_rng(0)
    for _ in range(8):
        # Another potential: a random linear function, minimised over all optimal ones.
        face = linprog(
            rng.normal(size=2 * n), np.vstack([sides, cost]), np.append(caps, best.fun + 1e-9), bounds=pinned
        )
        assert KR()(torch.tensor(face.x), labels).item() == pytest.approx(-3.0, abs=1e-6)
        assert 0.525 <= best_accuracy(face.x, labels) <= 0.55
    # The same points are separated without an error by a 1-Lipschitz function, which HKR with a small margin finds.
    f, _ = minimised(points, lambda f: HKR(0.5, 100.0)(f, labels), ftol=1e-8)
    assert bool(((f > 0) == (labels == 1)).all())


@pytest.mark.parametrize(("rise", "accuracy"), [(1.0, 22 / 40), (0.0, 21 / 40), (-1.0, 21 / 40)])
def test_the_printed_accuracy_of_critics_can_be_exceeded(rise: float, accuracy: float):
    # Printed: at most 52.5 % for n = 20, whatever the potential and the threshold. One that rises in between has 55 %.
    points = np.sort(np.concatenate([4.0 * np.arange(20), 4.0 * np.arange(20) + 3]))
    f = np.concatenate([[0.0], np.cumsum(([-3.0, rise] * 20)[:-1])])
    labels = torch.tensor([1, 0] * 20)
    assert bool((np.abs(np.diff(f)) <= np.diff(points)).all())
    assert KR()(torch.tensor(f), labels).item() == pytest.approx(-w1(points, labels))
    assert best_accuracy(f, labels) == pytest.approx(accuracy)


def test_cross_entropy_tends_to_kr_for_small_tau(line: tuple[Points, Tensor]):
    points, labels = line
    gaps = []
    for tau in (0.3, 0.1, 0.03):
        _, value = minimised(points, lambda f, tau=tau: TauBCE(tau)(f, labels))
        gaps.append(4 / tau * (value - math.log(2)) + w1(points, labels))
    # First order in tau: the error of the expansion is tau^2 f^2 / 8 before the factor 4 / tau.
    assert all(0 < gap < tau for gap, tau in zip(gaps, (0.3, 0.1, 0.03), strict=True))
    assert gaps[2] / gaps[1] == pytest.approx(0.3, rel=0.1)


def test_the_printed_expansion_lacks_tau():
    # Printed: loss = log 2 - y f / 2 + O(tau^2 f^2). At f = 1, tau = 0.01 that is off by 0.495; with tau by 1.3e-5.
    loss = TauBCE(0.01)(torch.ones(1, dtype=torch.float64), torch.ones(1)).item()
    assert abs(loss - (math.log(2) - 0.5)) > 0.49
    assert abs(loss - (math.log(2) - 0.01 / 2)) < 2 * 0.01**2 / 8


def test_minimisers_are_bounded_and_not_by_the_printed_bound():
    points = np.linspace(0, 1, 11)
    labels = torch.tensor([1] * 9 + [0] * 2)
    for L, tau in ((1e-3, 1.0), (0.5, 2.0), (3.0, 4.0), (20.0, 1.0)):
        f, _ = minimised(points, lambda f, tau=tau: TauBCE(tau)(f, labels), L)
        # The solver leaves gradients of 1e-7.
        assert float(f.abs().max()) <= L * 1.0 + math.log(9 / 2) / tau + 1e-5
        assert float(f.min()) - 1e-5 <= math.log(9 / 2) / tau <= float(f.max()) + 1e-5
    flat, _ = minimised(points, lambda f: TauBCE(1.0)(f, labels), 1e-3)
    # Printed: functions beyond 2 L diam cannot be minimal. Unequal classes push the best constant to log(p+ / p-).
    assert float(flat.abs().min()) > 1.49 > 2 * 1e-3 * 1.0


def test_single_gradients_do_not_vanish_at_the_minimum():
    points = np.linspace(0, 1, 11)
    labels = torch.tensor([1] * 7 + [0] * 4)
    for L, tau in ((1.0, 1.0), (3.0, 0.2)):
        f, _ = minimised(points, lambda f, tau=tau: TauBCE(tau)(f, labels), L)
        f.requires_grad_()
        (gradient,) = torch.autograd.grad(TauBCE(tau, reduction="sum")(f, labels), f)
        largest = L * 1.0 + math.log(7 / 4) / tau
        assert float(gradient.abs().min()) >= tau / (1 + math.exp(tau * largest))
        assert float(gradient.mean()) == pytest.approx(0.0, abs=1e-6)
        # Printed: at least 1 / (1 + exp |f|), whatever tau is.
        printed = 1 / (1 + f.detach().abs().exp())
        assert bool((gradient.abs() >= printed - 1e-12).all()) == (tau == 1.0)


def test_small_tau_treats_small_modes_as_noise():
    # P: 0.9 N(-2, 0.3) + 0.1 N(1, 0.1), Q mirrored; Bayes is right on all four modes.
    grid = np.linspace(-4, 4, 81)
    p = 0.9 * norm.pdf(grid, -2, 0.3) + 0.1 * norm.pdf(grid, 1, 0.1)
    weights = torch.tensor(np.concatenate([p, p[::-1]]) / p.sum() / 2)
    labels = torch.tensor([1] * len(grid) + [0] * len(grid))

    def signs_at_modes(tau: float) -> list[bool]:
        loss = TauBCE(tau, divided=True, reduction="none")
        f, _ = minimised(grid, lambda f: (weights * loss(torch.cat([f, f]), labels)).sum(), ftol=1e-7)
        return [bool(f[np.abs(grid - mode).argmin()] > 0) for mode in (-2, -1, 1, 2)]

    assert signs_at_modes(256.0) == [True, False, True, False]
    assert signs_at_modes(0.5) == [True, True, False, False]


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_reweighted_kr_has_the_gradient_of_cross_entropy(tau: float):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(17, 3, generator=generator, dtype=torch.float64)
    w = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1] * 5 + [-1] * 12)

    def bce(shift: float = 0.0) -> Tensor:
        f = x @ w - shift
        return torch.nn.functional.softplus(-tau * f[:5]).mean() + torch.nn.functional.softplus(tau * f[5:]).mean()

    (wanted,) = torch.autograd.grad(bce(), w)
    (found,) = torch.autograd.grad(ReweightedKR(tau)(x @ w, labels), w)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)  # softplus of torch is linear beyond 20
    shift = balanced_bias((x @ w)[:5], (x @ w)[5:], tau).item()
    (wanted,) = torch.autograd.grad(bce(shift), w)
    (found,) = torch.autograd.grad(ReweightedKR(tau, balanced=True)(x @ w, labels), w)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
    # With equal masses this is tau Z times the KR gradient between the error distributions.
    f = (x @ w).detach() - shift
    wrong_p, wrong_q = torch.sigmoid(-tau * f[:5]), torch.sigmoid(tau * f[5:])
    z = wrong_p.mean()
    torch.testing.assert_close(z, wrong_q.mean(), rtol=1e-12, atol=1e-12)
    kr = (wrong_p / wrong_p.sum()) @ x[:5] - (wrong_q / wrong_q.sum()) @ x[5:]
    torch.testing.assert_close(found, -tau * z * kr, rtol=1e-9, atol=1e-11)


def test_the_balanced_bias_of_mirrored_scores_is_their_centre():
    scores = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    assert balanced_bias(scores + 7, 7 - scores).item() == pytest.approx(7.0, abs=1e-12)
    assert balanced_bias(scores[:1], scores[:1]).item() == pytest.approx(0.3)


def test_cross_entropy_diverges_without_a_constraint():
    # f(x) = w x on {-1, +1}: log(1 + exp(-w)) has no minimum. Newton's steps are 1 or more; float32 hides it.
    x, labels = torch.tensor([-1.0, 1.0]), torch.tensor([-1, 1])

    def derivatives(w: float, dtype: torch.dtype) -> tuple[float, float]:
        weight = torch.tensor(w, dtype=dtype, requires_grad=True)
        (first,) = torch.autograd.grad(TauBCE()(weight * x.to(dtype), labels), weight)
        return first.item(), 1 / (2 + 2 * math.cosh(w))

    w = 0.0
    for _ in range(30):
        first, second = derivatives(w, torch.float64)
        # The step is 1 + exp(-w), known to 1e-15.
        assert -first / second > 1.0 - 1e-14
        w -= first / second
    assert w > 29.9  # and so is the constant, |f(1) - f(-1)| / 2 = w
    assert derivatives(110.0, torch.float32)[0] == 0.0
    assert derivatives(110.0, torch.float64)[0] < 0.0


def test_a_missing_class_counts_zero():
    f = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    for loss, value in (
        (KR(), -3.0),
        (HKR(4.0, 1.0), -3.0 + (3 + 2 + 0) / 3),
        (ReweightedKR(1.0, balanced=True), None),
    ):
        found = loss(f, torch.ones(3))
        assert torch.isfinite(found)
        assert bool(torch.isfinite(torch.autograd.grad(found, f)[0]).all())
        assert value is None or found.item() == pytest.approx(value)
    # Class 1 alone: its own mean, and the means of the other logits over all samples.
    logits = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    assert MulticlassKR()(logits, torch.tensor([1, 1])).item() == pytest.approx((-3.0 + 2.0 + 4.0) / 3)


@pytest.mark.parametrize("positives", [3, 6, 10])
def test_conventions_convert(positives: int):
    f = torch.linspace(-1.5, 2.0, 12, dtype=torch.float64)
    labels = torch.tensor([1] * positives + [0] * (12 - positives))
    a, min_margin = 0.9, 0.7
    hinge = torch.relu(min_margin / 2 - (2 * labels - 1) * f).mean()
    kr = f[labels == 1].mean() - f[labels == 0].mean()
    theirs = a * hinge - (1 - a) * kr
    torch.testing.assert_close(HKR.torchlip(min_margin, a)(f, labels), theirs)
    torch.testing.assert_close(Hinge.torchlip(min_margin)(f, labels), hinge)
    thesis = (1 - a) * HKR(min_margin / 2, a / (2 * (1 - a)))(f, labels)
    # With class means in both terms the two agree exactly when the classes are equally frequent.
    assert bool(torch.isclose(thesis, theirs, rtol=1e-12)) == (positives == 6)
    torch.testing.assert_close(HKR(0.3, 40.0, scale=1 / 40)(f, labels), HKR(0.3, 40.0)(f, labels) / 40)


def test_arguments_go_there_and_back():
    for loss in (HKR.torchlip(0.7, 0.9), MulticlassHKR.torchlip(0.7, 0.9)):
        assert loss.torchlip_arguments() == pytest.approx((0.7, 0.9))
    f, labels = torch.linspace(-1.5, 2.0, 12, dtype=torch.float64), torch.tensor([1] * 6 + [0] * 6)
    ours = HKR(0.3, 5.0)
    min_margin, alpha = ours.torchlip_arguments()
    torch.testing.assert_close(HKR.torchlip(min_margin, alpha)(f, labels) / (1 - alpha), ours(f, labels))


def test_the_same_margin_is_halved_by_another_release():
    # 36/255 as min_margin hinges there in deel-lip 1.2 and at half of it in deel-lip 1.4 and deel-torchlip.
    f = torch.tensor([0.1], dtype=torch.float64)
    assert Hinge(36 / 255)(f, torch.ones(1)).item() == pytest.approx(36 / 255 - 0.1)
    assert Hinge.torchlip(36 / 255)(f, torch.ones(1)).item() == 0.0


@pytest.mark.parametrize("bound", [0.5, 1.0, 2.0])
def test_the_dual_does_not_depend_on_the_constant(bound: float) -> None:
    # Point masses at 1 and 0. Of K-Lipschitz functions f(x) = K x is the best, and minus the KR loss is its value.
    scores = torch.tensor([bound * 1.0, bound * 0.0], dtype=torch.float64)
    supremum = -float(KR()(scores, torch.tensor([1, 0])))
    assert supremum == pytest.approx(bound)
    assert supremum / bound == pytest.approx(1.0)
    # As printed, K times the supremum would be the distance, for every K.
    assert bound == 1.0 or bound * supremum != pytest.approx(1.0)
