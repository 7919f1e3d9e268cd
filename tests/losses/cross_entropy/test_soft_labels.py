"""Probabilities as labels: the mean of the loss over labels drawn from them, by brute force over all labels."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lipkit.bound import Bound, Kind, Scope
from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import CRM, DecayingRadius, RadiusUpTo, TauCrossEntropy, Truncated
from support.unchecked import unchecked

CLASSES, BATCH = 5, 40
GOALS = [DecayingRadius(0.3), RadiusUpTo(0.3), Truncated(0.3)]
Worth = Callable[[float, float], float]
# g of the soft radius s and the radius r, written out once more.
WORTHS: list[Worth] = [
    lambda s, _: math.exp(-s / 0.3),
    lambda s, r: -s if r < 0.3 else 0.0,
    lambda s, _: -min(s, 0.3),
]


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, soft labels, and constants of pairs; the first row has a tie, the second label is certain."""
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(BATCH, CLASSES, generator=generator, dtype=torch.float64)
    z[0] = torch.tensor([1.0, 0.5, 1.0, 0.0, -1.0])
    soft = torch.rand(BATCH, CLASSES, generator=generator, dtype=torch.float64) ** 3
    soft[1] = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    pairs = 0.5 + 2 * torch.rand(CLASSES, CLASSES, generator=generator, dtype=torch.float64)
    return z, soft / soft.sum(1, keepdim=True), (pairs + pairs.T).fill_diagonal_(0)


def log_sum_exp(values: list[float]) -> float:
    return math.log(math.fsum(math.exp(v) for v in values))


def crm(z: list[float], y: int, pairs: Tensor, worth: Worth) -> float:
    """One label by the definition, with weight 4 and temperature 7."""
    loss = log_sum_exp(z) - z[y]
    rivals = [j for j in range(CLASSES) if j != y]
    if all(z[y] > z[j] for j in rivals):
        radii = [(z[y] - z[j]) / float(pairs[y, j]) for j in rivals]
        loss += 4 * worth(-log_sum_exp([-7 * r for r in radii]) / 7, min(radii))
    return loss


@pytest.mark.parametrize(("goal", "worth"), [*zip(GOALS, WORTHS, strict=True)], ids=lambda v: type(v).__name__)
def test_crm_is_the_mean_over_labels(goal: Callable[[Tensor], Tensor], worth: Worth) -> None:
    z, soft, pairs = drawn()
    expected = [
        math.fsum(float(soft[i, y]) * crm(z[i].tolist(), y, pairs, worth) for y in range(CLASSES)) for i in range(BATCH)
    ]
    loss = CRM(goal, weight=4.0, temperature=7.0, reduction="none")
    # Thirty roundings of numbers below a hundred, in float64.
    torch.testing.assert_close(
        loss(z, soft, pairs), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def check_gradients_and_hard_labels(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, soft: Tensor) -> None:
    """The gradient is the mean of those of single labels; probabilities of 0 and 1 are class indices."""
    z.requires_grad_()
    (one,) = torch.autograd.grad(loss(z, soft).sum(), z)
    many = [torch.autograd.grad((soft[:, y] * loss(z, torch.full((BATCH,), y))).sum(), z)[0] for y in range(CLASSES)]
    torch.testing.assert_close(one, torch.stack(many).sum(0), rtol=1e-12, atol=1e-12)
    labels = torch.arange(BATCH) % CLASSES
    hard = one_hot(labels, CLASSES).double()
    torch.testing.assert_close(loss(z, hard), loss(z, labels), rtol=1e-12, atol=1e-12)
    # Probabilities in few digits, as autocast gives them: 2^-8 relative each.
    half = one_hot(labels, CLASSES).bfloat16()
    torch.testing.assert_close(loss(z, half), loss(z, labels), rtol=1e-12, atol=1e-12)
    assert loss(z.detach().float(), soft.float()).dtype == torch.float32


@pytest.mark.parametrize("goal", GOALS, ids=lambda v: type(v).__name__)
def test_crm_has_the_gradients_of_single_labels(goal: Callable[[Tensor], Tensor]) -> None:
    z, soft, pairs = drawn()
    loss = CRM(goal, weight=4.0, temperature=7.0, reduction="none")
    check_gradients_and_hard_labels(lambda logits, target: loss(logits, target, pairs), z, soft)


def test_crm_moves_constants_by_the_share_of_the_leading_class() -> None:
    z, soft, pairs = drawn()
    loss = CRM(DecayingRadius(0.3), weight=4.0, temperature=7.0, reduction="none")
    pairs.requires_grad_()
    (one,) = torch.autograd.grad(loss(z, soft, pairs).sum(), pairs)
    many = [
        torch.autograd.grad((soft[:, y] * loss(z, torch.full((BATCH,), y), pairs)).sum(), pairs)[0]
        for y in range(CLASSES)
    ]
    torch.testing.assert_close(one, torch.stack(many).sum(0), rtol=1e-12, atol=1e-12)
    assert float(one.abs().max()) > 0


def test_crm_takes_constants_of_samples_with_soft_labels() -> None:
    z, soft, _ = drawn()
    each = torch.linspace(0.5, 2.0, BATCH).double()
    local = Bound.from_value(each, Kind.UPPER, "local", of=Scope.SAMPLE)
    loss = CRM(Truncated(0.3), weight=4.0, temperature=7.0, reduction="none")
    # In l2 the difference of two outputs moves by sqrt 2 times as much as the map.
    expected = [
        loss(z[i : i + 1], soft[i : i + 1], math.sqrt(2) * each[i].expand(CLASSES, CLASSES)) for i in range(BATCH)
    ]
    # The factor sqrt 2 of a bound is rounded up, a few units in the last place.
    torch.testing.assert_close(loss(z, soft, local), torch.cat(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("divided", [False, True])
def test_tempered_cross_entropy_is_the_mean_over_labels(divided: bool) -> None:
    z, soft, _ = drawn()
    tau = 2.5
    expected = []
    for i in range(BATCH):
        row = [tau * v for v in z[i].tolist()]
        mean = math.fsum(float(soft[i, y]) * (log_sum_exp(row) - row[y]) for y in range(CLASSES))
        expected.append(mean / tau if divided else mean)
    loss = TauCrossEntropy(tau, divided=divided, reduction="none")
    torch.testing.assert_close(loss(z, soft), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    check_gradients_and_hard_labels(loss, z, soft)


@unchecked()
def test_what_is_no_probability_is_refused() -> None:
    z, _, pairs = drawn()
    for loss in (lambda p: CRM(Truncated(0.3))(z, p, pairs), TauCrossEntropy()):
        given = (lambda p, loss=loss: loss(z, p)) if isinstance(loss, TauCrossEntropy) else loss
        with pytest.raises(ShapeError, match="shape of the logits"):
            given(torch.full((BATCH, 2), 0.5))
        with pytest.raises(ArgumentError, match="sums off by 1"):
            given(torch.full((BATCH, CLASSES), 2 / CLASSES))
        with pytest.raises(ArgumentError, match="-1 at least"):
            given(torch.tensor([[2.0, -1.0, 0.0, 0.0, 0.0]]).repeat(BATCH, 1))
