"""Every loss against a loop over samples and classes in plain Python, and its gradients against differences."""

import copy
import inspect
import itertools
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lipkit import losses
from lipkit.bound import Bound, Kind, Scope
from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses._base import Reduction
from lipkit.losses.cross_entropy.crm import soft_radius
from lipkit.losses.cross_entropy.gloro import bottom_logit
from lipkit.losses.fenchel_young import ShannonRegularizer, TemperedRegularizer
from support.naming import naming
from support.unchecked import unchecked

Row = list[float]
CLASSES = 4


@dataclass(frozen=True)
class Case:
    """A loss, and one number for each sample: from its scores, its label and the labels of the whole batch.

    The scores of a loss of noisy logits are those of all `draws` copies, one after the other.
    """

    loss: losses.Loss
    reference: Callable[[Row, int, list[int]], float]
    binary: bool = False
    constants: bool = False
    draws: int = 0

    @property
    def name(self) -> str:
        return type(self.loss).__name__


def lse(values: Row) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def ce(z: Row, y: int) -> float:
    return lse(z) - z[y]


def pair(a: int, b: int) -> float:
    """Constants of pairs, as different as possible: symmetric, zero diagonal."""
    return 0.0 if a == b else 0.5 + 0.25 * min(a, b) + 0.125 * max(a, b)


PAIRS = torch.tensor([[pair(a, b) for b in range(CLASSES)] for a in range(CLASSES)], dtype=torch.float64)


def radius(z: Row, y: int) -> float:
    return min((z[y] - z[j]) / pair(y, j) for j in range(len(z)) if j != y)


def soft(z: Row, y: int, t: float) -> float:
    return -lse([-t * (z[y] - z[j]) / pair(y, j) for j in range(len(z)) if j != y]) / t


def kr(z: Row, y: int, labels: list[int]) -> float:
    n = len(labels)
    return sum(
        -z[k] * n / labels.count(k) / len(z) if k == y else z[k] * n / (n - labels.count(k)) / len(z)
        for k in range(len(z))
    )


def hinge(z: Row, y: int, m: float) -> float:
    k = len(z)
    return ((k - 1) * max(0, m - z[y]) + sum(max(0, m + z[j]) for j in range(k) if j != y)) / k


def soft_hkr(z: Row, y: int, m: float, alpha: float, t: float) -> float:
    rest = [z[j] for j in range(len(z)) if j != y]
    shares = [math.exp(t * v - lse([t * w for w in rest])) for v in rest]
    others = sum(p * (v + alpha * max(0, m + v)) for p, v in zip(shares, rest, strict=True))
    return -z[y] + alpha * max(0, m - z[y]) + others


def lse_hkr(z: Row, y: int, m: float, alpha: float, t: float) -> float:
    rest = lse([t * z[j] for j in range(len(z)) if j != y]) / t
    return -z[y] + alpha * max(0, m - z[y]) + rest + alpha * max(0, m + rest)


def offset(z: Row, y: int, u: float, t: float) -> Row:
    return [(v - u * (j == y)) / t for j, v in enumerate(z)]


def annealed(z: Row, y: int) -> float:
    p = math.exp(-ce(offset(z, y, 2.0, 0.75), y))
    return -0.75 * (1 - p) ** 5 * math.log(p)


def margin_logits(z: Row, y: int, eps: float) -> Row:
    return [v + eps * pair(y, j) for j, v in enumerate(z)]


def emma(z: Row, y: int, eps: float) -> float:
    moved = []
    for j, v in enumerate(z):
        if j == y:
            moved.append(0.0)
        else:
            share = min(1.0, max(0.01, (z[y] - v) / (eps * pair(y, j))))
            moved.append(v - z[y] + share * eps * pair(y, j))
    return ce(moved, y)


def gloro(z: Row, y: int, eps: float) -> float:
    j = max(range(len(z)), key=lambda k: z[k])
    bottom = max(z[i] + eps * pair(i, j) for i in range(len(z)) if i != j)
    return ce([*z, bottom], y)


def trades(z: Row, y: int, eps: float, weight: float) -> float:
    """The divergence as it is defined, term by term."""
    j = max(range(len(z)), key=lambda k: z[k])
    bottom = max(z[i] + eps * pair(i, j) for i in range(len(z)) if i != j)
    logs = [(v - lse(z), v - lse([*z, bottom])) for v in z]
    return ce(z, y) + weight * math.fsum(math.exp(p) * (p - q) for p, q in logs)


def crm(z: Row, y: int, goal: Callable[[float], float]) -> float:
    correct = z[y] > max(z[j] for j in range(len(z)) if j != y)
    return ce(z, y) + (0.7 * goal(soft(z, y, 3.0)) if correct else 0.0)


def copies(z: Row) -> list[Row]:
    return [z[i : i + CLASSES] for i in range(0, len(z), CLASSES)]


def mean_probabilities(z: Row) -> Row:
    return [sum(math.exp(v[k] - lse(v)) for v in copies(z)) / len(copies(z)) for k in range(CLASSES)]


def noisy(z: Row, y: int) -> float:
    return sum(ce(one, y) for one in copies(z)) / len(copies(z))


def consistency(z: Row, y: int, weight: float, entropy: float) -> float:
    """The divergence and the entropy as they are defined, term by term."""
    q = mean_probabilities(z)
    apart = [math.fsum(q[k] * (math.log(q[k]) - v[k] + lse(v)) for k in range(CLASSES)) for v in copies(z)]
    return noisy(z, y) + weight * sum(apart) / len(apart) - entropy * math.fsum(p * math.log(p) for p in q)


def binary_kr(f: Row, y: int, labels: list[int]) -> float:
    return -(2 * y - 1) * f[0] * len(labels) / labels.count(y)


def binary_hinge(f: Row, y: int, m: float) -> float:
    return max(0.0, m - (2 * y - 1) * f[0])


def bce(f: Row, y: int, tau: float) -> float:
    return lse([0.0, -tau * (2 * y - 1) * f[0]])


def balance(y: int, labels: list[int]) -> float:
    return len(labels) / labels.count(y)


CASES = [
    Case(losses.KR(), binary_kr, binary=True),
    Case(losses.Hinge(0.8), lambda f, y, _: binary_hinge(f, y, 0.8), binary=True),
    Case(losses.Hinge(0.8, balanced=True), lambda f, y, b: balance(y, b) * binary_hinge(f, y, 0.8), binary=True),
    Case(
        losses.HKR(0.8, 3.0),
        lambda f, y, b: binary_kr(f, y, b) + 3 * balance(y, b) * binary_hinge(f, y, 0.8),
        binary=True,
    ),
    Case(
        losses.HKR.torchlip(1.6, 0.75),
        lambda f, y, b: 0.25 * binary_kr(f, y, b) + 0.75 * binary_hinge(f, y, 0.8),
        binary=True,
    ),
    Case(losses.TauBCE(2.5), lambda f, y, _: bce(f, y, 2.5), binary=True),
    Case(losses.TauBCE(2.5, divided=True), lambda f, y, _: bce(f, y, 2.5) / 2.5, binary=True),
    Case(losses.MulticlassKR(), kr),
    Case(losses.MulticlassHinge(0.8), lambda z, y, _: hinge(z, y, 0.8)),
    Case(losses.MulticlassHKR(0.8, 3.0, scale=0.5), lambda z, y, b: 0.5 * (kr(z, y, b) + 3 * hinge(z, y, 0.8))),
    Case(losses.MulticlassHKR.torchlip(1.6, 0.75), lambda z, y, b: 0.25 * kr(z, y, b) + 0.75 * hinge(z, y, 0.8)),
    Case(losses.SoftHKR(0.8, 3.0, 1.5), lambda z, y, _: soft_hkr(z, y, 0.8, 3.0, 1.5)),
    Case(losses.SoftHKR.torchlip(1.6, 0.75, 1.5), lambda z, y, _: 0.25 * soft_hkr(z, y, 0.8, 3.0, 1.5)),
    Case(losses.LseHKR(0.8, 3.0, 1.5), lambda z, y, _: lse_hkr(z, y, 0.8, 3.0, 1.5)),
    Case(
        losses.LseHKR.torchlip(1.6, 0.75, CLASSES, 2.0),
        lambda z, y, _: 0.25 * lse_hkr(z, y, 0.8, 3.0, math.log(3) / 1.6),
    ),
    Case(losses.TauCrossEntropy(2.5), lambda z, y, _: ce([2.5 * v for v in z], y)),
    Case(losses.TauCrossEntropy(2.5, divided=True), lambda z, y, _: ce([2.5 * v for v in z], y) / 2.5),
    Case(losses.FenchelYoung(ShannonRegularizer()), lambda z, y, _: ce(z, y)),
    Case(losses.OffsetCrossEntropy(), lambda z, y, _: 0.25 * ce(offset(z, y, 1.5 * math.sqrt(2), 0.25), y)),
    Case(losses.LogitAnnealing(), lambda z, y, _: annealed(z, y)),
    Case(losses.LipschitzMargin(0.6), lambda z, y, _: ce(margin_logits(z, y, 0.6), y), constants=True),
    Case(losses.EMMA(0.6), lambda z, y, _: emma(z, y, 0.6), constants=True),
    Case(losses.GloRo(0.6), lambda z, y, _: gloro(z, y, 0.6), constants=True),
    Case(losses.GloRo(0.6, weight=2.5), lambda z, y, _: trades(z, y, 0.6, 2.5), constants=True),
    Case(
        losses.CRM(losses.DecayingRadius(0.5), weight=0.7, temperature=3.0),
        lambda z, y, _: crm(z, y, lambda r: math.exp(-r / 0.5)),
        constants=True,
    ),
    Case(
        losses.CRM(losses.Truncated(0.5), weight=0.7, temperature=3.0),
        lambda z, y, _: crm(z, y, lambda r: -min(r, 0.5)),
        constants=True,
    ),
    Case(
        losses.CRM(losses.RadiusUpTo(0.5), weight=0.7, temperature=3.0),
        lambda z, y, _: crm(z, y, lambda r: -r) if radius(z, y) < 0.5 else ce(z, y),
        constants=True,
    ),
    Case(
        losses.CertificateRegularized(0.5, weight=0.7),
        lambda z, y, _: ce(z, y) + 0.7 * (1 - min(1.0, max(0.0, radius(z, y) / 0.5))),
        constants=True,
    ),
    Case(losses.NoisyCrossEntropy(), lambda z, y, _: noisy(z, y), draws=3),
    Case(losses.SmoothedCrossEntropy(), lambda z, y, _: -math.log(mean_probabilities(z)[y]), draws=3),
    Case(losses.Consistency(2.5, 0.7), lambda z, y, _: consistency(z, y, 2.5, 0.7), draws=3),
]
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
with_constants = pytest.mark.parametrize("case", [case for case in CASES if case.constants], ids=lambda case: case.name)


def batch(case: Case, n: int = 9, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    columns = 1 if case.binary else CLASSES * max(1, case.draws)
    scores = scale * torch.randn(n, columns, generator=generator, dtype=torch.float64)
    # Every class occurs, with different frequencies; each is predicted right for some samples.
    labels = torch.tensor([0, 0, 0, 1, 1] if case.binary else [0, 0, 0, 1, 1, 2, 3, 3, 3])
    labels = labels.repeat(n)[:n]
    if not case.binary:
        scores[::2] += 1.5 * torch.nn.functional.one_hot(labels[::2], CLASSES).repeat(1, max(1, case.draws))
    return scores, labels


def called(loss: torch.nn.Module, case: Case, scores: Tensor, labels: Tensor, pairs: Tensor = PAIRS) -> Tensor:
    extra = (pairs,) if case.constants else ()
    if case.draws:
        scores = scores.unflatten(1, (case.draws, CLASSES)).transpose(0, 1)
    return loss(scores.squeeze(1) if case.binary else scores, labels, *extra)


def reduced(case: Case, reduction: Reduction) -> losses.Loss:
    loss = copy.deepcopy(case.loss)
    loss.reduction = reduction
    return loss


def test_every_loss_has_a_reference():
    public = {v for v in vars(losses).values() if inspect.isclass(v) and issubclass(v, losses.Loss)}
    # ReweightedKR weighs a sample by all others; tests/losses/kantorovich/test_transport.py compares its gradient.
    assert public - {type(case.loss) for case in CASES} == {losses.Loss, losses.ReweightedKR}


@every
def test_each_sample_has_the_number_of_its_definition(case: Case):
    scores, labels = batch(case, scale=1.5)
    found = called(reduced(case, "none"), case, scores, labels)
    expected = [
        case.reference(row, y, labels.tolist()) for row, y in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    # Both are float64 sums of a dozen terms of size 10.
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@every
def test_reductions_are_those_of_torch(case: Case):
    scores, labels = batch(case)
    single = called(reduced(case, "none"), case, scores, labels)
    assert single.shape == labels.shape
    torch.testing.assert_close(called(reduced(case, "mean"), case, scores, labels), single.mean())
    torch.testing.assert_close(called(reduced(case, "sum"), case, scores, labels), single.sum())


@every
def test_gradients_agree_with_differences(case: Case):
    scores, labels = batch(case)
    pairs = PAIRS.clone().requires_grad_()
    inputs = (scores.requires_grad_(), pairs) if case.constants else (scores.requires_grad_(),)
    loss = reduced(case, "none")
    if isinstance(loss, losses.EMMA):
        wanted = torch.autograd.grad(called(loss, case, scores, labels, pairs).sum(), inputs)
        found = frozen_emma(scores.detach(), labels)
        # Central differences with step 1e-6: an error of about 1e-10.
        torch.testing.assert_close(wanted, found, rtol=1e-7, atol=1e-8)
        return
    assert torch.autograd.gradcheck(lambda s, p=pairs: called(loss, case, s, labels, p), inputs, atol=1e-6)


def frozen_emma(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Differences of the sum of EMMA's losses at 0.6 in scores and constants, its shares fixed at these scores."""
    own = torch.arange(len(labels))
    share = ((scores[own, labels][:, None] - scores) / (0.6 * PAIRS[labels])).nan_to_num().clamp(0.01, 1.0)
    assert bool(((share > 0.01) & (share < 1.0)).any()), "some share must depend on the scores"
    share[own, labels] = 0.0

    def value(z: Tensor, pairs: Tensor) -> float:
        return sum(ce((z[i] + share[i] * 0.6 * pairs[y]).tolist(), y) for i, y in enumerate(labels.tolist()))

    def differences(at: Tensor, f: Callable[[Tensor], float]) -> Tensor:
        steps = torch.eye(at.numel(), dtype=torch.float64).reshape(-1, *at.shape) * 1e-6
        return torch.tensor([(f(at + h) - f(at - h)) / 2e-6 for h in steps], dtype=torch.float64).reshape(at.shape)

    return differences(scores, lambda z: value(z, PAIRS)), differences(PAIRS, lambda p: value(scores, p))


@every
def test_bfloat16_is_evaluated_in_float32(case: Case):
    scores, labels = batch(case)
    low = scores.to(torch.bfloat16).requires_grad_()
    value = called(case.loss, case, low, labels, PAIRS.float())
    assert value.dtype == torch.float32
    (gradient,) = torch.autograd.grad(value, low)
    assert gradient.dtype == torch.bfloat16
    same = low.detach().double().requires_grad_()
    expected = called(case.loss, case, same, labels)
    (wanted,) = torch.autograd.grad(expected, same)
    # The same numbers in float32: 24 bits; the gradient comes back with 8.
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=2**-7, atol=1e-5)


@every
def test_autocast_changes_nothing(case: Case):
    scores, labels = batch(case)
    plain = called(case.loss, case, scores.float(), labels, PAIRS.float())
    with torch.autocast("cpu", torch.bfloat16):
        cast = called(case.loss, case, scores.float(), labels, PAIRS.float())
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, rtol=1e-6, atol=1e-6)


@every
def test_ties_and_huge_scores_have_finite_gradients(case: Case):
    scores, labels = batch(case)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        # 6e4 is near the end of float16; float32 squares of 1e19 would overflow, so nothing may be squared.
        for hard in (torch.zeros_like(scores), 6e4 * scores.sign(), (1e19 if dtype != torch.float16 else 1e4) * scores):
            x = hard.to(dtype).requires_grad_()
            pairs = PAIRS.to(torch.float32 if dtype.itemsize == 2 else dtype).requires_grad_()
            value = called(case.loss, case, x, labels, pairs)
            with naming(dtype, hard):
                assert torch.isfinite(value)
                gradients = torch.autograd.grad(value, (x, pairs) if case.constants else (x,))
                assert all(bool(torch.isfinite(g).all()) for g in gradients)


@with_constants
def test_constants_of_zero_have_finite_gradients(case: Case):
    drawn, labels = batch(case)
    for of_scores, of_pairs in itertools.product((torch.bfloat16, torch.float32, torch.float64), repeat=2):
        scores = drawn.to(of_scores).requires_grad_()
        pairs = torch.zeros_like(PAIRS, dtype=of_pairs).requires_grad_()
        value = called(case.loss, case, scores, labels, pairs)
        with naming(of_scores, of_pairs):
            assert torch.isfinite(value)
            assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(value, (scores, pairs)))


@with_constants
def test_a_bound_and_its_pairs_give_the_same_loss(case: Case):
    scores, labels = batch(case)
    plain = called(case.loss, case, scores, labels)
    pairs = Bound.from_value(PAIRS, Kind.UPPER, "known", of=Scope.PAIR)
    torch.testing.assert_close(called(case.loss, case, scores, labels, PAIRS + 7 * torch.eye(CLASSES)), plain)
    # A bound is rounded up by a few units in the last place.
    torch.testing.assert_close(case.loss(scores, labels, pairs), plain, rtol=1e-12, atol=1e-12)
    whole = Bound.from_value(2.0, Kind.ESTIMATE, "guessed")
    direct = called(case.loss, case, scores, labels, 2 * math.sqrt(2) * (1 - torch.eye(CLASSES, dtype=torch.float64)))
    torch.testing.assert_close(case.loss(scores, labels, whole), direct, rtol=1e-12, atol=1e-12)
    assert case.loss(scores.float(), labels, whole).dtype == torch.float32


@every
def test_a_loss_survives_pickling_and_says_its_numbers(case: Case):
    scores, labels = batch(case)
    again = pickle.loads(pickle.dumps(case.loss))
    torch.testing.assert_close(called(again, case, scores, labels), called(case.loss, case, scores, labels))
    assert "reduction='mean'" in repr(again)


def test_numbers_appear_in_the_text_of_a_loss():
    assert repr(losses.HKR(0.5, 2.0)) == "HKR(margin=0.5, alpha=2, scale=1, reduction='mean')"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: losses.TauBCE(0.0), r"tau of TauBCE lies in \(0, inf\), got 0"),
        (lambda: losses.TauCrossEntropy(math.inf), r"tau of TauCrossEntropy lies in \(0, inf\), got inf"),
        (lambda: losses.Hinge(-1.0), r"margin of Hinge lies in \(0, inf\), got -1"),
        (lambda: losses.HKR(1.0, -0.5), r"alpha of HKR lies in \[0, inf\), got -0.5"),
        (lambda: losses.HKR.torchlip(1.0, 1.0), "use the hinge loss alone"),
        (lambda: losses.EMMA(0.1, floor=1.5), r"floor of EMMA lies in \[0, 1\], got 1.5"),
        (lambda: losses.GloRo(math.nan), r"epsilon of GloRo lies in \[0, inf\), got nan"),
        (lambda: losses.DecayingRadius(0.0), "target radius"),
        (lambda: losses.LseHKR.torchlip(1.0, 0.5, 2), "3 classes"),
        (lambda: TemperedRegularizer(ShannonRegularizer(), 0.0), "temperature is a finite number"),
        (lambda: losses.LogitAnnealing(beta=0.5)(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), "beta is 0 or"),
        (
            lambda: soft_radius(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.ones(2, 2), 0),
            "smooth",
        ),
    ],
)
def test_parameters_outside_their_domain_are_refused(make: Callable[[], object], complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        make()


@unchecked()
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.binary and not case.draws], ids=lambda case: case.name
)
def test_a_single_sample_without_batch_axis_and_labels_out_of_range_get_one_sentence(case: Case):
    label = torch.tensor(1)
    for logits, labels in ((torch.zeros(CLASSES), label), (torch.zeros(CLASSES), label[None])):
        with pytest.raises(ShapeError, match=r"got \(4,\); give a single sample a batch axis"):
            called(case.loss, case, logits, labels)
    with pytest.raises(ShapeError, match="flatten or transpose"):
        called(case.loss, case, torch.zeros(2, CLASSES, 3), torch.zeros(2, 3).long())
    for wrong in (-100, -1, CLASSES):
        with pytest.raises(ArgumentError, match=rf"Labels lie in 0\.\.3, got {min(wrong, 1)}\.\.{max(wrong, 1)};"):
            called(case.loss, case, torch.zeros(2, CLASSES), torch.tensor([1, wrong]))
    with pytest.raises(ArgumentError, match=r"floating point scores, got torch\.int64"):
        called(case.loss, case, torch.zeros(2, CLASSES).long(), torch.tensor([1, 1]))


@unchecked()
def test_functions_of_logits_refuse_a_single_sample_too():
    logits, constants = torch.zeros(3), torch.ones(3, 3)
    for call in (
        lambda: soft_radius(logits, torch.tensor(0), constants, 1.0),
        lambda: bottom_logit(logits, 0.1, constants),
        lambda: losses.FenchelYoung(ShannonRegularizer())(logits, torch.full((3,), 1 / 3)),
    ):
        with pytest.raises(ShapeError, match="give a single sample a batch axis"):
            call()


def test_an_assignment_is_checked_too():
    loss = losses.LipschitzMargin(0.1)
    loss.epsilon = 0.3
    assert loss.epsilon == 0.3
    with pytest.raises(ArgumentError, match="epsilon of LipschitzMargin"):
        loss.epsilon = -0.1


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ArgumentError, match="'median'"):
        inspect.unwrap(losses.Loss.__init__)(losses.KR(), "median")  # past the shape checks of the test run


def test_the_mean_of_no_samples_is_refused():
    with pytest.raises(ShapeError, match="empty batch"):
        losses.TauCrossEntropy()(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert losses.TauCrossEntropy(reduction="sum")(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == 0
