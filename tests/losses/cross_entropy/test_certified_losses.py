"""Promises of the losses with constants, on classifiers whose radii are known exactly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Bound, Kind, Scope
from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import (
    CRM,
    EMMA,
    CertificateRegularized,
    DecayingRadius,
    GloRo,
    LipschitzMargin,
    LogitAnnealing,
    OffsetCrossEntropy,
    RadiusUpTo,
    TauCrossEntropy,
    Truncated,
    margins,
)
from lipkit.losses.cross_entropy.crm import soft_radius
from lipkit.losses.cross_entropy.gloro import bottom_logit
from support.unchecked import unchecked

CLASSES = 5


def affine(seed: int = 0, n: int = 200) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of an affine classifier, labels, the constants of its pairs, and the distance to the true boundary."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(CLASSES, 3, generator=generator, dtype=torch.float64)
    x = 2 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    z = x @ w.T
    pairs = torch.cdist(w, w)
    best = torch.full((n,), math.inf, dtype=torch.float64)
    for i in range(n):
        y = int(labels[i])
        for j in set(range(CLASSES)) - {y}:
            best[i] = min(best[i], (z[i, y] - z[i, j]) / torch.linalg.vector_norm(w[y] - w[j]))
    return z, labels, pairs, best


@pytest.mark.parametrize("t", [0.1, 1.0, 10.0, 1000.0])
def test_the_soft_radius_lies_below_the_radius_by_little(t: float):
    z, labels, pairs, radius = affine()
    soft = soft_radius(z, labels, pairs, t)
    # Radii are of size 10; t times them of size 1e4.
    assert bool((soft <= radius + 1e-12).all())
    assert bool((radius <= soft + math.log(CLASSES - 1) / t + 1e-12).all())


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=6), st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_sandwich_holds_for_any_logits(row: list[float], t: float, k: float):
    z, label = torch.tensor([row], dtype=torch.float64), torch.tensor([0])
    soft = soft_radius(z, label, torch.full((len(row), len(row)), k, dtype=torch.float64), t).item()
    hard = (row[0] - max(row[1:])) / k
    slack = 1e-12 * max(1.0, abs(hard))
    assert hard - math.log(len(row) - 1) / t - slack <= soft <= hard + slack


def test_a_right_worst_case_means_a_certified_radius():
    z, labels, pairs, radius = affine()
    eps = 0.4
    worst = z + eps * pairs[labels]
    safe = worst.argmax(1) == labels
    assert safe.any()
    assert not safe.all()
    assert bool((safe == (radius > eps)).all())
    # A loss below log 2 leaves more than half of the probability to the true class.
    for loss in (LipschitzMargin(eps, reduction="none"), GloRo(eps, reduction="none")):
        small = loss(z, labels, pairs) < math.log(2)
        assert small.any()
        assert bool((radius[small] > eps).all())


def test_the_handicap_belongs_to_the_rivals_and_scales_with_the_radius():
    # f(t) = (t, -t): constant sqrt 2, so sqrt 2 Lip = 2. At t = 1 the margin is 2 and the class changes at distance 1.
    z, y = torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([0])
    lip = Bound.from_value(math.sqrt(2), Kind.EXACT, "f")
    # Printed: a margin of sqrt 2 Lip is enough for a radius c. Here it is reached, and c = 1.5 is not safe.
    assert margins(z, y).item() >= math.sqrt(2) * math.sqrt(2) - 1e-12
    # Ours holds the rival to 2 c: on the boundary at c = 1, ahead at c = 1.5.
    assert LipschitzMargin(1.0)(z, y, lip).item() == pytest.approx(math.log(2))
    assert LipschitzMargin(1.5)(z, y, lip).item() == pytest.approx(math.log1p(math.exp(1.0)))
    # Printed: f_i of the true class i is raised, which rewards a larger c.
    printed = [torch.nn.functional.cross_entropy(z + torch.tensor([[2 * c, 0.0]]), y).item() for c in (0.0, 1.0, 1.5)]
    assert printed == sorted(printed, reverse=True)


def test_abstaining_is_exact_for_affine_classifiers():
    z, _, pairs, _ = affine()
    predicted = z.argmax(1)
    distance = soft_radius(z, predicted, pairs, 1e7)
    for eps in (0.1, 0.5):
        keeps = bottom_logit(z, eps, pairs) < z.amax(1)
        # The smooth minimum at 1e7 is within 2e-7.
        assert bool((keeps == (distance > eps)).all())
        assert keeps.any()
        assert not keeps.all()


def test_ties_abstain():
    z = torch.tensor([[1.0, 1.0, 0.0]])
    assert bool(bottom_logit(z, 0.1, torch.ones(3, 3)) > z.amax(1))
    assert bool(bottom_logit(z, 0.0, torch.ones(3, 3)) >= z.amax(1))


def test_losses_grow_with_epsilon_and_start_at_cross_entropy():
    z, labels, pairs, _ = affine()
    plain = torch.nn.functional.cross_entropy(z, labels)
    for make in (LipschitzMargin, EMMA):
        found = [make(eps)(z, labels, pairs).item() for eps in (0.0, 0.1, 0.3, 1.0)]
        assert found[0] == pytest.approx(plain.item())
        assert found == sorted(set(found))
    # Abstaining at epsilon 0 is worth the runner-up: more than nothing.
    found = [GloRo(eps)(z, labels, pairs).item() for eps in (0.0, 0.1, 0.3, 1.0)]
    assert plain.item() < found[0]
    assert found == sorted(set(found))


def test_emma_lies_between_two_margins():
    z, labels, pairs, _ = affine()
    found = EMMA(0.5, floor=0.02, reduction="none")(z, labels, pairs)
    assert bool((LipschitzMargin(0.01, reduction="none")(z, labels, pairs) <= found + 1e-12).all())
    assert bool((found <= LipschitzMargin(0.5, reduction="none")(z, labels, pairs) + 1e-12).all())
    # One rival at a lead inside the radius is put on the boundary: log 2. Far beyond, it is moved by all of epsilon.
    two = torch.ones(2, 2, dtype=torch.float64)
    at = EMMA(0.5, reduction="none")(
        torch.tensor([[0.3, 0.0], [9.0, 0.0]], dtype=torch.float64), torch.zeros(2).long(), two
    )
    assert at.tolist() == pytest.approx([math.log(2), math.log1p(math.exp(-8.5))])


def test_gradients_pull_constants_down_and_margins_up():
    z, labels, _, _ = affine()
    right = margins(z, labels) > 0
    for loss in (
        LipschitzMargin(0.4),
        EMMA(0.4),
        GloRo(0.4),
        CRM(DecayingRadius(0.4)),
        CRM(Truncated(1.0)),
        CRM(RadiusUpTo(1.0)),
        CertificateRegularized(1.0),
    ):
        constant = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        bound = Bound.from_value(constant, Kind.ESTIMATE, "trained")
        (gradient,) = torch.autograd.grad(loss(z, labels, bound), constant)
        assert float(gradient) > 0, f"{loss} must fall with the constant"
        scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        # Constants in float32 beside logits in float64 are fine.
        (gradient,) = torch.autograd.grad(
            loss(scale * z[right], labels[right], torch.full((CLASSES, CLASSES), 1.5)), scale
        )
        assert float(gradient) < 0, f"{loss} must fall as margins of right samples grow"


def test_wrong_samples_get_no_reward():
    z, labels, pairs, radius = affine()
    wrong = radius <= 0
    plain = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    for goal in (DecayingRadius(0.1), Truncated(0.1), RadiusUpTo(1e3), torch.neg):
        found = CRM(goal, reduction="none")(z, labels, pairs)
        torch.testing.assert_close(found[wrong], plain[wrong])
        assert bool((found[~wrong] != plain[~wrong]).all())
    # A margin of exactly 0 is not correct.
    assert CRM(torch.neg)(torch.zeros(1, 3), torch.tensor([0]), torch.ones(3, 3)).item() == pytest.approx(math.log(3))


def test_a_radius_that_is_reached_is_left_alone_though_its_smooth_form_is_not():
    """Ten equal rivals at t = 5: R = 0.3 has the smooth form 0.3 - log(9) / 5 = -0.14, far below a target of 0.2."""
    z, labels = torch.zeros(1, 10, dtype=torch.float64), torch.tensor([0])
    z[0, 0] = 0.3
    pairs = torch.ones(10, 10, dtype=torch.float64)
    assert float(soft_radius(z, labels, pairs, 5.0)) == pytest.approx(0.3 - math.log(9) / 5)
    z.requires_grad_()
    plain, done, pulled = (
        torch.autograd.grad(loss, z)[0]
        for loss in (
            torch.nn.functional.cross_entropy(z, labels),
            CRM(RadiusUpTo(0.2), temperature=5.0)(z, labels, pairs),
            CRM(Truncated(0.2), temperature=5.0)(z, labels, pairs),
        )
    )
    assert torch.equal(done, plain)
    assert float(pulled[0, 0]) < float(plain[0, 0])


def test_the_price_is_the_missing_radius():
    z, labels, pairs, radius = affine()
    plain = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    price = CertificateRegularized(0.8, weight=3.0, reduction="none")(z, labels, pairs) - plain
    torch.testing.assert_close(price, 3 * (1 - radius.clamp(0, 0.8) / 0.8))
    assert bool((price[radius >= 0.8].abs() < 1e-12).all())


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=5), st.floats(0, 4))
def test_the_offset_asks_for_a_margin(row: list[float], offset: float):
    z, y = torch.tensor([row], dtype=torch.float64), torch.tensor([0])
    lack = offset - margins(z, y).item()
    assert OffsetCrossEntropy(offset)(z, y).item() >= max(0.0, lack) - 1e-12
    torch.testing.assert_close(LogitAnnealing(0.25, offset, 0.0)(z, y), OffsetCrossEntropy(offset)(z, y))
    torch.testing.assert_close(OffsetCrossEntropy(0.0, 1.0)(z, y), TauCrossEntropy()(z, y))
    # It falls as the true class gains.
    more = z + torch.nn.functional.one_hot(y, len(row))
    assert OffsetCrossEntropy(offset)(more, y) <= OffsetCrossEntropy(offset)(z, y)
    assert LogitAnnealing(offset=offset)(more, y) <= LogitAnnealing(offset=offset)(z, y)


def test_annealing_keeps_the_digits_of_sure_predictions():
    z = torch.tensor([[40.0, 0.0]], dtype=torch.float32)
    # 1 - p = exp(-40 / 0.75 ...) is far below the spacing of float32 near 1; its first power survives.
    found = LogitAnnealing(1.0, 0.0, 1.0)(z, torch.tensor([0])).item()
    assert found == pytest.approx(math.exp(-40) ** 2, rel=1e-4)


def test_classes_and_whole_maps_are_accepted():
    z, labels, _, _ = affine()
    rows = Bound.from_value(torch.arange(1.0, CLASSES + 1).double(), Kind.UPPER, "rows", of=Scope.CLASS)
    sums = torch.arange(1.0, CLASSES + 1).double()[:, None] + torch.arange(1.0, CLASSES + 1).double()
    sums.fill_diagonal_(0)
    torch.testing.assert_close(LipschitzMargin(0.2)(z, labels, rows), LipschitzMargin(0.2)(z, labels, sums))
    local = Bound.from_value(torch.linspace(0.5, 2, len(z)).double(), Kind.UPPER, "local", of=Scope.SAMPLE)
    expected = torch.stack(
        [
            LipschitzMargin(0.2)(z[i : i + 1], labels[i : i + 1], Bound.from_value(k, Kind.UPPER, "one"))
            for i, k in enumerate(torch.linspace(0.5, 2, len(z)).double())
        ]
    )
    torch.testing.assert_close(LipschitzMargin(0.2, reduction="none")(z, labels, local), expected)


def test_soft_labels_are_the_mean_over_labels_drawn_from_them():
    z, labels, pairs, _ = affine(n=30)
    generator = torch.Generator().manual_seed(1)
    soft = torch.rand(30, CLASSES, generator=generator, dtype=torch.float64)
    soft = soft / soft.sum(1, keepdim=True)
    loss = EMMA(0.5, reduction="none")
    expected = []
    for i in range(30):
        total = 0.0
        for y in range(CLASSES):
            moved = []
            for j in range(CLASSES):
                reach = 0.5 * float(pairs[y, j])
                lead = float(z[i, y] - z[i, j])
                moved.append(0.0 if j == y else min(1.0, max(0.01, lead / reach)) * reach - lead)
            total += float(soft[i, y]) * math.log(math.fsum(math.exp(m) for m in moved))
        expected.append(total)
    z.requires_grad_()
    pairs.requires_grad_()
    found = loss(z, soft, pairs)
    assert found.tolist() == pytest.approx(expected)
    # Gradients into logits and constants are the same means.
    one = torch.autograd.grad(found.sum(), (z, pairs), retain_graph=True)
    many = [
        torch.autograd.grad((soft[:, y] * loss(z, torch.full((30,), y), pairs)).sum(), (z, pairs))
        for y in range(CLASSES)
    ]
    for a, parts in zip(one, zip(*many, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(parts).sum(0))
    hard = torch.nn.functional.one_hot(labels, CLASSES).double()
    torch.testing.assert_close(loss(z, hard, pairs), loss(z, labels, pairs))


@unchecked()
def test_soft_labels_that_are_none_are_refused():
    z, _, pairs, _ = affine(n=4)
    with pytest.raises(ShapeError, match="shape of the logits"):
        EMMA(0.5)(z, torch.full((4, 2), 0.5), pairs)
    with pytest.raises(ArgumentError, match="sums off by 1"):
        EMMA(0.5)(z, torch.full((4, CLASSES), 2 / CLASSES), pairs)
    with pytest.raises(ArgumentError, match="-1 at least"):
        EMMA(0.5)(z, torch.tensor([[2.0, -1.0, 0.0, 0.0, 0.0]]).repeat(4, 1), pairs)
    local = Bound.from_value(torch.ones(4, dtype=torch.float64), Kind.ESTIMATE, "local", of=Scope.SAMPLE)
    with pytest.raises(ArgumentError, match="class indices"):
        EMMA(0.5)(z, torch.full((4, CLASSES), 1 / CLASSES), local)
