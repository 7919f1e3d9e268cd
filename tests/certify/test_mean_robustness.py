"""Mean certifiable robustness and certifiable AUROC against loops and closed forms."""

import inspect
import math

import pytest
import torch

from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.certify.attacks import PGD, Constant
from lipkit.certify.mean_robustness import (
    Moves,
    attacked_auroc,
    certifiable_auroc,
    mean_certifiable_robustness,
    signed_radii,
)
from lipkit.errors import ArgumentError, KindError, NonFiniteError, ShapeError
from support.unchecked import unchecked


def bound(value: float | torch.Tensor, of: Scope = Scope.WHOLE, metric: Metric = L2, kind: Kind = Kind.UPPER) -> Bound:
    return Bound.from_value(value, kind, "given", metric, of)


def test_signed_radii_of_an_affine_classifier_are_signed_distances():
    torch.manual_seed(0)
    w, x = torch.randn(2, 5, dtype=torch.float64), torch.randn(50, 5, dtype=torch.float64)
    labels = torch.randint(2, (50,))
    size = torch.linalg.vector_norm(w[0] - w[1])
    pairs = size * (1 - torch.eye(2, dtype=torch.float64))
    found = signed_radii(x @ w.T, labels, bound(pairs, Scope.PAIR))
    truth = (x @ (w[0] - w[1])) / size * (1 - 2 * labels)
    assert bool((truth < 0).any())
    # Rounded down in size, never up.
    assert torch.allclose(found, truth, rtol=1e-12)
    assert bool((found.abs() <= truth.abs() * (1 + 1e-15)).all())


def test_the_mean_against_a_loop():
    torch.manual_seed(1)
    z, labels = torch.randn(20, 4), torch.randint(4, (20,))
    constant = torch.rand(4, dtype=torch.float64) + 0.5
    expected = []
    for row, y in zip(z.double().tolist(), labels.tolist(), strict=True):
        expected.append(min((row[y] - row[j]) / float(constant[y] + constant[j]) for j in range(4) if j != y))
    given = bound(constant, Scope.CLASS)
    assert mean_certifiable_robustness(z, labels, given) == pytest.approx(sum(expected) / 20, rel=1e-12)
    clipped = sum(max(0.0, r) for r in expected) / 20
    assert mean_certifiable_robustness(z, labels, given, clipped=True) == pytest.approx(clipped, rel=1e-12)
    whole = [
        min(row[y] - row[j] for j in range(4) if j != y) for row, y in zip(z.double().tolist(), labels, strict=True)
    ]
    for metric, factor in ((L2, math.sqrt(2)), (Metric(math.inf, math.inf), 2.0), (Metric(1.0, 1.0), 1.0)):
        mean = mean_certifiable_robustness(z, labels, bound(3.0, metric=metric))
        assert mean == pytest.approx(sum(whole) / 20 / (3 * factor), rel=1e-12)


def test_the_binary_mean_is_that_of_y_f():
    # Logits (f/2, -f/2) of a 1-Lipschitz score are 1/sqrt(2)-Lipschitz in l2, so that E[y f] comes out.
    f = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    z = torch.stack([f / 2, -f / 2], 1)
    labels = torch.tensor([0, 0, 1])
    value = mean_certifiable_robustness(z, labels, bound(math.sqrt(0.5)))
    assert value == pytest.approx((0.5 - 1.0 - 2.0) / 3, rel=1e-12)


def test_auroc_against_all_pairs_and_the_worst_attack():
    torch.manual_seed(2)
    # Multiples of 1/8: scores meet, and so do shifted ones.
    scores = (torch.randn(40, dtype=torch.float64) * 8).round() / 8
    labels = torch.randint(2, (40,)) * 2 - 1
    high, low = scores[labels > 0].tolist(), scores[labels < 0].tolist()
    for eps in (0.0, 0.1, 0.51, 1.3):
        shift = 2 * 1.5 * eps
        pairs = [(a - b > shift) + (a - b == shift) / 2 for a in high for b in low]
        value = certifiable_auroc(scores, labels, bound(1.5), eps)
        assert value <= sum(pairs) / len(pairs)
        assert value == pytest.approx(sum(pairs) / len(pairs), abs=1e-15)
    assert certifiable_auroc(scores, (labels > 0).long(), bound(1.5), 0.1) == certifiable_auroc(
        scores, labels, bound(1.5), 0.1
    )
    # For f(x) = x the attack x - y eps does exactly that.
    moved = scores - labels * 0.3
    assert certifiable_auroc(scores, labels, bound(1.0), 0.3) <= certifiable_auroc(moved, labels, bound(1.0), 0.0)


@pytest.mark.parametrize(("eps", "expected"), [(0.0, 0.856), (0.2, 0.782), (0.5, 0.638)])
def test_the_certified_auroc_of_two_gaussians(eps: float, expected: float):
    # N(1, 1) against N(-1/2, 1): P(s- + eps < s+ - eps) = Phi((1.5 - 2 eps)/sqrt(2)); their quantiles as samples.
    normal = torch.distributions.Normal(0.0, 1.0)
    q = normal.icdf((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    scores, labels = torch.cat([q + 1.0, q - 0.5]), torch.cat([torch.ones(4000), torch.zeros(4000)]).long()
    truth = float(normal.cdf(torch.tensor((1.5 - 2 * eps) / math.sqrt(2))))
    # The quantiles leave out tails of 1/8000 on each side.
    assert certifiable_auroc(scores, labels, bound(1.0), eps) == pytest.approx(truth, abs=2e-4)
    assert truth == pytest.approx(expected, abs=6e-4)
    for moves in (Moves.ANOMALIES, Moves.NORMALS):
        # One class that moves by 2 eps is as bad as two that move by eps.
        assert certifiable_auroc(scores, labels, bound(1.0), 2 * eps, moves) == pytest.approx(truth, abs=2e-4)


def test_each_attacker_moves_its_own_class_and_stays_above_the_certificate():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (60,), generator=generator)
    x[labels == 0] *= 2

    def score(points: torch.Tensor) -> torch.Tensor:
        return 1.0 - torch.linalg.vector_norm(points, dim=1)

    def attacked(moves: Moves, eps: float) -> float:
        attack = PGD(eps, steps=20, step_size=max(0.1 * eps, 1e-9), restarts=2, schedule=Constant())
        return attacked_auroc(score, x, labels, attack, moves, torch.Generator().manual_seed(0))

    plain = certifiable_auroc(score(x), labels, bound(1.0), 0.0)
    assert attacked(Moves.BOTH, 0.0) == plain
    for eps in (0.1, 0.4):
        # The worst moves of this score are known: straight out for normal samples, straight in for anomalies.
        length = torch.linalg.vector_norm(x, dim=1)
        worst = {True: 1.0 - (length + eps), False: 1.0 - (length - eps).clamp(min=0.0)}
        for moves in Moves:
            scores = score(x)
            for normal, idle in ((True, Moves.ANOMALIES), (False, Moves.NORMALS)):
                if moves is not idle:
                    rows = (labels == 1) == normal
                    scores[rows] = worst[normal][rows]
            truth = certifiable_auroc(scores, labels, bound(1.0), 0.0)
            found, proven = attacked(moves, eps), certifiable_auroc(score(x), labels, bound(1.0), eps, moves)
            assert proven <= truth <= found <= plain
            # Steps of a tenth of the radius end within 1e-2 of the worst point; a pair is 1/900 of the mean.
            assert found <= truth + 0.02
            assert str(moves)


def test_the_printed_formula_raises_the_auroc():
    # Proposition 12 prints p_1(t - 2 eps), which is attackers who help.
    normal = torch.distributions.Normal(0.0, 1.0)
    t = torch.linspace(-12, 12, 48001, dtype=torch.float64)
    step = float(t[1] - t[0])

    def area(shift: float) -> float:
        return float((normal.cdf(t + 0.5) * normal.log_prob(t + shift - 1.0).exp()).sum()) * step

    plain, printed, right = area(0.0), area(-0.4), area(0.4)
    assert [round(v, 4) for v in (plain, printed, right)] == [0.8556, 0.9104, 0.7817]
    assert right < plain < printed


def test_what_proves_nothing_is_refused():
    z, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    for kind in (Kind.LOWER, Kind.ESTIMATE):
        with pytest.raises(KindError, match="certifies"):
            signed_radii(z, labels, bound(1.0, kind=kind))
        with pytest.raises(KindError, match="exact or upper"):
            certifiable_auroc(z[:, 0], labels, bound(1.0, kind=kind), 0.1)
    with pytest.raises(NonFiniteError, match="NaN"):
        signed_radii(z * torch.nan, labels, bound(1.0))
    with pytest.raises(ArgumentError, match="no samples"):
        mean_certifiable_robustness(z[:0], labels[:0], bound(1.0))
    with pytest.raises(ArgumentError, match="both classes"):
        certifiable_auroc(z[:, 0], torch.ones(2).long(), bound(1.0), 0.1)
    with pytest.raises(ArgumentError, match="eps=-1"):
        certifiable_auroc(z[:, 0], labels, bound(1.0), -1.0)


def test_a_constant_of_zero_never_changes_sides():
    z, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.zeros(3).long()
    assert signed_radii(z, labels, bound(0.0)).tolist() == [math.inf, -math.inf, 0.0]


def test_the_range_of_floats_is_not_left():
    # The true gap is 3e308, the true radius 3e308/sqrt(2) > 1.7e308: neither may be printed as infinite.
    logits, labels = torch.tensor([[1.5e308, -1.5e308]] * 2, dtype=torch.float64), torch.tensor([0, 1])
    assert signed_radii(logits, labels, bound(1.0)).tolist() == [
        pytest.approx(1.7e308 / math.sqrt(2), rel=1e-12),
        pytest.approx(-1.7e308 / math.sqrt(2), rel=1e-12),
    ]
    assert bool(torch.isfinite(signed_radii(logits, labels, bound(1e-300))).all())


def test_other_shapes_and_labels_are_refused():
    with pytest.raises(ArgumentError, match=r"0\.\.1, got 2\.\.2"):
        signed_radii(torch.zeros(1, 2), torch.tensor([2]), bound(1.0))
    with pytest.raises(ShapeError, match=r"got \(3,\) and \(2,\)"):
        inspect.unwrap(certifiable_auroc)(torch.zeros(3), torch.tensor([0, 1]), bound(1.0), 0.1)
    with pytest.raises(ArgumentError, match="needs a Bound, got float"):
        inspect.unwrap(certifiable_auroc)(torch.zeros(2), torch.tensor([0, 1]), 1.0, 0.1)


@pytest.mark.parametrize(("constant", "eps"), [(1e-200, 1e-200), (1.0, 5e-324), (1e-160, 1e-160)])
def test_a_move_that_float64_rounds_to_zero_is_a_move(constant: float, eps: float):
    # Equal scores: whatever small K eps > 0 is, an attacker can put every normal sample below every anomaly.
    bound = Bound.from_value(constant, Kind.UPPER, "stated")
    assert certifiable_auroc(torch.zeros(2), torch.tensor([0, 1]), bound, eps) == 0.0
    assert certifiable_auroc(torch.zeros(2), torch.tensor([0, 1]), bound, 0.0) == 0.5


def test_arrays_are_refused_with_what_to_do():
    scores, labels = torch.zeros(2).numpy(), torch.tensor([0, 1])
    with unchecked(), pytest.raises(ArgumentError, match="Scores and labels are tensors, got ndarray and Tensor"):
        certifiable_auroc(scores, labels, Bound.from_value(1.0, Kind.UPPER, "stated"), 0.1)  # pyright: ignore[reportArgumentType]
