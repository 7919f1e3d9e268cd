"""Figures of the literature and of the errata that no other file of this folder recomputes."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy
import torch
from torch import nn

from lipkit import losses, privacy
from lipkit.linops import Conv, Padding
from lipkit.privacy.accounting.renyi import INTEGER_ORDERS
from lipkit.privacy.record_limits.kernel_counts import kernel_factor

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)


@pytest.mark.parametrize(
    ("tensors", "printed"),
    [(1, "2.425"), (2, "3.729"), (4, "6.070"), (6, "8.445"), (8, "10.707"), (16, "22.343")],
)
def test_one_multiplier_for_every_tensor_costs_the_root_of_their_number(tensors: int, printed: str):
    # Multiplier 3 on each of D tensors is one release of 3 / sqrt(D).
    found = privacy.epsilon(0.05, 3 / math.sqrt(tensors), 1000, 1e-5, privacy.RDP(INTEGER_ORDERS))
    assert f"{found:.3f}" == printed


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "order", "printed"),
    [(0.01, 1.0, 10_000, 4.1, 6.71276), (0.2, 4.0, 1325, 3.4, 9.84988)],
)
def test_fractional_orders_are_below_the_other_figures(
    rate: float, sigma: float, steps: int, order: float, printed: float
):
    # Printed by dp-accounting 0.6.0, whose series for fractional orders is above the integral, by 5e-6 and 4e-3 of it
    # at these two. Ours is the integral.
    found = privacy.epsilon(rate, sigma, steps, 1e-5, privacy.RDP((order,)))
    assert printed * (1 - 3e-3) < found < printed
    with mpmath.workdps(30):

        def moment(z: Any) -> Any:
            ratio = 1 - rate + rate * mpmath.exp((2 * z - 1) / (2 * sigma**2))
            return mpmath.npdf(z, 0, sigma) * ratio ** mpmath.mpf(order)

        ends = [-30 * sigma, -5 * sigma, 0, 1, order, 6 * sigma, order + 30 * sigma]
        divergence = mpmath.log(mpmath.quad(moment, sorted(ends))) / (order - 1)
        truth = steps * divergence + math.log(1 - 1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
    assert found == pytest.approx(float(truth), rel=1e-9)
    assert found >= float(truth) * (1 - 1e-15)


@needs_library
def test_loss_distributions_give_the_other_figure():
    assert f"{privacy.epsilon(0.01, 1.0, 10_000, 1e-5, privacy.PLD()):.5f}" == "6.18774"


@needs_library
def test_replacing_a_record_costs_more_than_the_plan_says():
    # The relation is part of the claim: 2.725 is for adding or removing a record, 5.563 for replacing one.
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    release = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1 / 60, dp.GaussianDpEvent(2.0)), 5400)
    replaced = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE).compose(release).get_epsilon(1e-5)
    assert f"{replaced:.3f}" == "5.563"
    plan = privacy.Plan(60_000, 1_000, 5400, 1e-5, sigma=2.0)
    assert plan.epsilon < replaced / 2 + 0.1
    assert "adding or removing one record" in str(plan)


@pytest.mark.parametrize(
    ("taps", "side", "printed", "corollary"),
    [(3, 32, "1.0213", "1.0323"), (5, 32, "1.0390", "1.0667"), (3, 28, "1.0244", "1.0370")],
)
def test_orthogonal_kernels_with_the_factor_of_their_border(taps: int, side: int, printed: str, corollary: str):
    # The kernel of the public code is the orthogonal matrix times n, which counts the taps that the border cuts.
    half = (taps - 1) / 2
    n = side / (taps * side - half * (half + 1))
    sides = ((taps // 2, taps // 2),) * 2
    op = Conv(torch.zeros(1, 1, taps, taps), (side, side), (1, 1), sides, (1, 1), 1, Padding.ZEROS)
    found = n * kernel_factor(op)
    assert f"{found:.4f}" == printed
    bound = 1 / (1 - (taps - 1) / (2 * side))
    assert f"{bound:.4f}" == corollary
    assert found < bound


@pytest.mark.parametrize("constant", [1.0, 3.0])
def test_the_infimum_of_the_binary_loss_is_minus_half_the_distance(constant: float):
    # Equation 6.10 without its signs: points on a line, where the distance is known by sorting.
    chance = np.random.default_rng(0)
    classes = np.sort(chance.normal(size=12)), np.sort(chance.normal(loc=2.0, size=12))
    points, y = np.concatenate(classes), np.repeat([1.0, -1.0], 12)
    a, b = np.nonzero(~np.eye(24, dtype=bool))
    differences = np.zeros((len(a), 24))
    differences[np.arange(len(a)), a], differences[np.arange(len(a)), b] = 1, -1
    # inf over constant-Lipschitz f of E[-y f], one value of f a point; f is free up to a shift.
    found = scipy.optimize.linprog(
        -y / 24, A_ub=differences, b_ub=constant * np.abs(points[a] - points[b]),
        bounds=[(0, 0)] + [(None, None)] * 23,
    )  # fmt: skip
    distance = scipy.stats.wasserstein_distance(*classes)
    assert found.fun == pytest.approx(-constant / 2 * distance, rel=1e-9)
    loss = privacy.BinaryKR()
    values = torch.from_numpy(found.x)
    assert float(loss(values, torch.from_numpy(y))) == pytest.approx(found.fun, rel=1e-9)


def test_small_clips_make_a_cross_entropy_the_constant_gradient_loss():
    # Below the smallest slope every logit gradient is -C y, so all gradients of parameters are collinear.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.randn(64, 5, dtype=torch.float64), (torch.arange(64) % 2).double()[:, None]
    parameters = list(model.parameters())
    least = float(torch.sigmoid(-(2 * y - 1) * model(x)).detach().min())
    straight = torch.autograd.grad(privacy.BinaryKR(reduction="sum")(model(x), y), parameters)

    def clipped(limit: float) -> tuple[torch.Tensor, ...]:
        loss = nn.BCEWithLogitsLoss(reduction="sum")
        return torch.autograd.grad(loss(privacy.Fixed(limit)(model(x)), y), parameters)

    for share in (0.01, 0.5, 0.999):
        for found, one in zip(clipped(share * least), straight, strict=True):
            # Factors in float64.
            torch.testing.assert_close(found, share * least * one, rtol=1e-12, atol=1e-14)
    # And not beyond: the direction turns once some record is below the limit.
    turned = torch.cat([g.flatten() for g in clipped(1.5 * least)])
    kept = torch.cat([g.flatten() for g in straight])
    assert float(torch.cosine_similarity(turned, kept, dim=0)) < 1 - 1e-6


def test_the_middle_term_of_the_bound_grows_with_the_depth():
    # What is left of the square of the bound without its other two terms, for few and for many layers.
    def middle(depth: int, x: float = 1.0, bias: float = 0.01) -> float:
        whole = privacy.DenseNetwork(1.0, 1.0, 1.0, bias, x, depth).gradient() ** 2
        others = (depth + 1) * (1 + x * x) + bias**2 * depth * (depth + 1) * (2 * depth + 1) / 6
        return math.sqrt(whole - others)

    assert middle(100) == pytest.approx(10.05, abs=0.005)
    # Four times as deep: four times as large, where the printed root would double.
    assert middle(400) / middle(100) == pytest.approx(4, rel=0.01)


def test_printed_losses_do_not_ask_for_the_right_class():
    logits = torch.tensor([[2.0, 5.0]], dtype=torch.float64, requires_grad=True)
    hot = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    printed = (1 - logits * hot).clamp(min=0)
    (stuck,) = torch.autograd.grad(printed.sum(), logits)
    assert printed.tolist() == [[0.0, 1.0]]
    assert stuck.abs().max() == 0
    (both,) = torch.autograd.grad((logits - hot).sum(), logits)
    assert both.tolist() == [[1.0, 1.0]]
    # Ours lower the wrong logit, and raise the right one where it is below its margin.
    label = torch.tensor([0])
    for loss in (losses.MulticlassHinge(margin=2.0), privacy.FixedPriorHKR([0.5, 0.5])):
        (ours,) = torch.autograd.grad(loss(logits, label), logits)
        assert ours[0, 1] > 0 >= ours[0, 0]
    # At (3, 4) both classes are right or wrong by the sign alone: the printed cosine is 0.6, ours its negative.
    assert privacy.BoundedCosine(1.0)(torch.tensor([[3.0, 4.0]]), label).item() == pytest.approx(-0.6)


@pytest.mark.parametrize("chunk", [1, 16, 4096])
def test_a_batch_in_pieces_has_one_noise(chunk: int, tmp_path: Path):
    model = nn.Linear(100, 40, bias=False).double()
    plan = privacy.Plan(64, 64, 1, 1e-3, sigma=1.1, sampling=privacy.Whole(), accountant=privacy.RDP())
    before = model.weight.detach().clone()
    # Records of zero have no gradient: all that moves the weights is noise.
    records, ball = (torch.zeros(64, 100).double(), torch.zeros(64).long()), privacy.Inputs((100,), 1.0)
    with privacy.Training(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 1.0), records, plan, ball,
        ledger=tmp_path / "ledger", chunk=chunk,
    ) as training:  # fmt: skip
        training.step()
    limit = float(privacy.sensitivity(model, nn.CrossEntropyLoss(), ball).total.value)
    found = float((model.weight.detach() - before).square().mean().sqrt())
    # Six deviations of the root of a mean of 4000 squares; the printed form has 8 times as much in 64 pieces.
    assert found == pytest.approx(1.1 * limit / 64, rel=6 / math.sqrt(2 * 4000))
