"""Constants of losses in the outputs: approached by a search, never exceeded; losses that mix records are refused."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit import losses, privacy
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.losses.fenchel_young import SquaredNormRegularizer
from lipkit.privacy.record_limits.loss_constants import logit_gradient

K = 4


def indices(count: int) -> Tensor:
    return torch.arange(count) % K


def binary(count: int) -> Tensor:
    return (torch.rand(count, K, generator=torch.Generator().manual_seed(5)) > 0.5).double()


Case = tuple[nn.Module, Callable[[int], Tensor], float]
CASES: list[Case] = [
    (nn.CrossEntropyLoss(), indices, math.sqrt(2)),
    (nn.CrossEntropyLoss(label_smoothing=0.1), indices, math.sqrt(2)),
    (nn.CrossEntropyLoss(torch.tensor([1.0, 3.0, 0.5, 2.0]).double(), reduction="sum"), indices, 3 * math.sqrt(2)),
    (nn.NLLLoss(), indices, 1.0),
    (nn.BCEWithLogitsLoss(), binary, 0.5),
    (nn.BCEWithLogitsLoss(reduction="sum"), binary, 2.0),
    (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), binary, 1.5),
    (nn.L1Loss(), binary, 0.5),
    (nn.SmoothL1Loss(), binary, 0.5),
    (nn.HuberLoss(delta=0.3), binary, 0.15),
    (nn.MultiMarginLoss(), indices, math.sqrt(3 / 4)),
    (losses.TauCrossEntropy(5.0), indices, 5 * math.sqrt(2)),
    (losses.TauCrossEntropy(5.0, divided=True), indices, math.sqrt(2)),
    (losses.TauBCE(7.0, reduction="sum"), binary, 14.0),
    (losses.TauBCE(7.0, divided=True), binary, 0.5),
    (losses.OffsetCrossEntropy(), indices, math.sqrt(2)),
    (losses.LogitAnnealing(), indices, math.sqrt(2) * (1 + 5 / math.e)),
    (losses.FenchelYoung(SquaredNormRegularizer()), indices, math.sqrt(2)),
    (losses.Hinge(), binary, 0.5),
    (losses.MulticlassHinge(), indices, math.sqrt(3 / 4)),
    (losses.LseHKR(alpha=2.0), indices, 3 * math.sqrt(2)),
    (privacy.BinaryKR(), binary, 0.5),
    (privacy.FixedPriorHKR([0.25] * 4), indices, 0.25 * math.sqrt(16 + 3 * 16 / 9)),
    (privacy.FixedPriorHKR([0.1, 0.2, 0.3, 0.4], alpha=2.0), indices, 4.5),
    (privacy.BoundedCosine(0.5), indices, 2.0),
]


def is_attained(loss: nn.Module) -> bool:
    """False for a crude bound, for a sum of suprema at different points, and for labels that are never one-hot."""
    smooth = getattr(loss, "label_smoothing", 0.0)
    return not (isinstance(loss, losses.LogitAnnealing | privacy.FixedPriorHKR) or smooth)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_gradients_approach_the_constant_and_stay_below(case: Case):
    loss, target, constant = case
    found = logit_gradient(loss, K)
    if not isinstance(loss, privacy.FixedPriorHKR) or loss.alpha == 0:
        assert found.norm == pytest.approx(constant)
    generator = torch.Generator().manual_seed(0)
    count, best = 2000, 0.0
    y = target(count)
    for size in (0.0, 0.1, 1.0, 10.0, 1000.0):
        z = (size * torch.randn(count, K, generator=generator, dtype=torch.float64)).requires_grad_()
        value = loss(z, y)
        total = value * count if loss.reduction == "mean" else value.sum()
        (gradient,) = torch.autograd.grad(total, z)
        best = max(best, float(gradient.norm(dim=1).max()))
        if found.spread is not None:
            # c times a mixture of differences: sum 0, and the positive entries add up to c at most.
            assert float(gradient.sum(1).abs().max()) <= 1e-9
            assert float(gradient.clamp(min=0).sum(1).max()) <= found.spread * (1 + 1e-9)
    assert best <= found.norm * (1 + 1e-9)
    assert best >= 0.4 * found.norm
    assert not is_attained(loss) or best > 0.98 * found.norm


@pytest.mark.parametrize(("classes", "constant"), [(2, 1.41421), (10, 1.05409), (100, 1.00504)])
def test_equal_shares_have_the_printed_constants(classes: int, constant: float):
    loss = privacy.FixedPriorHKR([1 / classes] * classes)
    assert logit_gradient(loss, classes).norm == pytest.approx(constant, abs=5e-6)


@pytest.mark.parametrize(
    "loss",
    [
        losses.KR(),
        losses.HKR(),
        losses.MulticlassKR(),
        losses.MulticlassHKR(),
        losses.ReweightedKR(),
        losses.Hinge(balanced=True),
        nn.CrossEntropyLoss(torch.ones(K)),
        nn.CrossEntropyLoss(ignore_index=0),
        nn.NLLLoss(torch.ones(K)),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_that_read_other_records_are_refused_clipped_or_not(loss: nn.Module):
    for clip in (None, privacy.Fixed(0.1)):
        with pytest.raises(UnsupportedError, match="moves the gradients of all"):
            logit_gradient(loss, K, clip)


@pytest.mark.parametrize("loss", [nn.MSELoss(), losses.SoftHKR(), nn.MultiMarginLoss(p=2)])
def test_losses_without_a_constant_need_a_clip(loss: nn.Module):
    with pytest.raises(UnsupportedError, match="has no bound; clip"):
        logit_gradient(loss, K)
    assert logit_gradient(loss, K, privacy.Fixed(0.1)).norm == 0.1


def test_an_unknown_loss_is_refused():
    with pytest.raises(UnsupportedError, match="logit_constant"):
        logit_gradient(nn.PoissonNLLLoss(), K)


def test_a_clip_above_the_constant_changes_nothing():
    assert logit_gradient(nn.CrossEntropyLoss(), K, privacy.Fixed(9.0)).norm == pytest.approx(math.sqrt(2))


def test_bad_shares_are_refused():
    for shares in ([0.5, 0.6], [1.0], [0.0, 1.0]):
        with pytest.raises(ArgumentError, match="Class shares"):
            privacy.FixedPriorHKR(shares)
    with pytest.raises(ShapeError, match="class shares"):
        privacy.FixedPriorHKR([0.5, 0.5])(torch.zeros(1, 3), torch.tensor([0]))
