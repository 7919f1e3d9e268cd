"""Activation decay against Monte Carlo smoothing, and the ways to attach it to a model."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.regularizers import ActivationDecay, DecayedCrossEntropy, LayerwiseActivation, TaylorDecay, recording
from lipkit.regularizers.activations.smoothing_gap import smoothing_gap


def problem(samples: int = 4, features: int = 6, classes: int = 3, seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(seed)
    head = nn.Linear(features, classes).double()
    return head, torch.randn(samples, features, dtype=torch.float64), torch.randint(classes, (samples,))


@settings(max_examples=15)
@given(st.floats(0.05, 2.0), st.integers(2, 5), st.integers(0, 100))
def test_the_decayed_loss_bounds_the_smoothed_one(sigma: float, classes: int, seed: int) -> None:
    head, hidden, target = problem(samples=1, classes=classes, seed=seed)
    # For one sample Delta h is N(0, sigma^2 ||h||^2 I), so logits are drawn directly.
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(40_000, classes, dtype=torch.float64, generator=generator)
    logits = head(hidden).detach() + sigma * float(hidden.norm()) * noise
    losses = functional.cross_entropy(logits, target.expand(len(logits)), reduction="none")
    plain = float(functional.cross_entropy(head(hidden), target).detach())
    error = float(losses.std()) / math.sqrt(len(losses))
    for decay in (ActivationDecay(sigma), ActivationDecay(sigma, classes)):
        # Five standard errors.
        assert float(losses.mean()) <= plain + float(decay(hidden)) + 5 * error


def test_the_refinement_is_needed_in_no_smaller_form() -> None:
    # c equal logits and small noise: the smoothed loss is log c + sigma^2/2 (1 - 1/c) ||h||^2 to second order.
    classes, sigma = 3, 0.05
    noise = torch.randn(400_000, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses = functional.cross_entropy(sigma * noise, torch.zeros(len(noise), dtype=torch.long), reduction="none")
    # The linear part has mean zero and is most of the variance: take it out.
    centred = losses + sigma * (noise[:, 0] - noise.mean(1))
    gap = float(centred.mean()) - math.log(classes)
    bound = float(ActivationDecay(sigma, classes)(torch.ones(1, 1, dtype=torch.float64)))
    assert bound == pytest.approx(sigma**2 / 2 * 2 / 3)
    assert 0.98 * bound < gap < 1.02 * bound


def test_values_are_those_of_a_loop() -> None:
    head, hidden, _ = problem()
    expected = sum(0.04 / 2 * float(h @ h) for h in hidden) / 4
    assert float(ActivationDecay(0.2)(hidden)) == pytest.approx(expected, rel=1e-12)
    assert float(ActivationDecay(0.2, 3)(hidden)) == pytest.approx(expected * 2 / 3, rel=1e-12)
    logits = head(hidden).detach()
    terms: list[float] = []
    for h, z in zip(hidden, logits, strict=True):
        p = [math.exp(float(v)) / sum(math.exp(float(w)) for w in z) for v in z]
        terms.append(0.02 * float(h @ h) * sum(q * (1 - q) for q in p))
    assert float(TaylorDecay(0.2)(hidden, logits)) == pytest.approx(sum(terms) / 4, rel=1e-12)


def test_the_taylor_variant_is_right_to_second_order() -> None:
    head, hidden, target = problem(samples=1)
    errors: list[float] = []
    noise = torch.randn(200_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = head(hidden).detach()
    slope = torch.softmax(plain, 1) - functional.one_hot(target, 3)
    for sigma in (0.2, 0.1):
        moved = sigma * float(hidden.norm()) * torch.cat([noise, -noise])
        losses = functional.cross_entropy(plain + moved, target.expand(len(moved)), reduction="none")
        gap = float((losses - moved @ slope[0]).mean()) - float(functional.cross_entropy(plain, target))
        errors.append(abs(float(TaylorDecay(sigma)(hidden, plain)) / gap - 1))
    # The next term is of fourth order, so the relative error falls with sigma^2.
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 2


def test_gradients() -> None:
    head, hidden, _ = problem()
    hidden.requires_grad_()
    (found,) = torch.autograd.grad(ActivationDecay(0.3)(hidden), [hidden])
    assert torch.allclose(found, 0.09 * hidden.detach() / 4)
    weight = head.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: TaylorDecay(0.3)(h, h @ w.mT), (hidden, weight))
    assert torch.autograd.gradgradcheck(lambda h, w: TaylorDecay(0.3)(h, h @ w.mT), (hidden, weight))


def test_tokens_count_one_by_one_and_padding_does_not() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, 3, 4)
    valid = torch.tensor([[True, True, False], [True, False, False]])
    hidden[~valid] = math.nan
    expected = 0.005 * hidden[valid].square().sum() / 3
    assert float(ActivationDecay(0.1)(hidden, valid)) == pytest.approx(float(expected), rel=1e-6)
    logits = torch.zeros(2, 3, 5)
    taylor = TaylorDecay(0.1)(hidden, logits, valid)
    assert float(taylor) == pytest.approx(float(expected) * 0.8, rel=1e-6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("decay", [ActivationDecay(0.3), TaylorDecay(0.3)], ids=["bound", "taylor"])
def test_the_wrapped_loss(reduction: str, decay: ActivationDecay | TaylorDecay) -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, 5).double()
    hidden = torch.randn(2, 3, 4, dtype=torch.float64)
    target = torch.tensor([[0, 1, -100], [4, -100, 2]])
    loss = DecayedCrossEntropy(head, decay, reduction=reduction)
    found = loss(hidden, target).detach()
    each = torch.zeros(2, 3, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            if target[i, j] != -100:
                z = head(hidden[i, j]).detach()
                extra = decay.each(hidden[i, j], z)
                each[i, j] = functional.cross_entropy(z[None], target[i, j][None]) + extra
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / 4}[reduction]
    assert torch.allclose(found, expected, rtol=1e-12)


def test_ignored_positions_give_no_gradient() -> None:
    loss = DecayedCrossEntropy(nn.Linear(4, 5), ActivationDecay(0.3))
    hidden = torch.randn(3, 4, requires_grad=True)
    loss(hidden, torch.tensor([0, -100, 2])).backward()
    assert hidden.grad is not None
    assert not bool(hidden.grad[1].any())
    assert bool(hidden.grad[0].any())


def test_the_recorded_input_is_the_one_that_trains() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    with recording(model[2]) as seen:
        logits = model(x)
    (functional.cross_entropy(logits, y) + ActivationDecay(0.5)(seen.input)).backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    DecayedCrossEntropy(model[2], ActivationDecay(0.5))(model[1](model[0](x)), y).backward()
    for a, p in zip(found, model.parameters(), strict=True):
        assert p.grad is not None
        assert torch.allclose(a, p.grad, atol=1e-6)
    assert not model[2]._forward_hooks


def test_recordings_end_with_their_block() -> None:
    layer: Any = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), recording(layer):
        layer(torch.zeros(1, 3))
    assert not layer._forward_hooks
    with recording(layer) as seen:
        layer(input=torch.zeros(1, 2))
        layer(torch.ones(1, 2))
    assert len(seen.inputs) == len(seen.outputs) == 2
    with pytest.raises(ArgumentError, match="one call"):
        _ = seen.input


@pytest.mark.parametrize("sigma", [0.05, 0.2, 1.0])
def test_the_gap_is_never_positive_beyond_its_error(sigma: float) -> None:
    head, hidden, target = problem(samples=8)
    found = smoothing_gap(head, hidden, target, ActivationDecay(sigma), sigma, 3000, torch.Generator().manual_seed(0))
    assert float(found.gap) <= 5 * float(found.error)
    # The printed table has cosines of 0.92 to 0.94 between these two; for small noise they agree.
    if sigma == 0.05:
        assert float(found.weight.cosine) > 0.999
        assert float(found.weight.ratio) == pytest.approx(1.0, abs=0.01)


def test_the_gap_tends_to_the_jensen_gap() -> None:
    head, hidden, target = problem(samples=1, classes=2)
    sigma = 0.5
    found = smoothing_gap(head, hidden, target, ActivationDecay(sigma), sigma, 4000, torch.Generator().manual_seed(0))
    # Two classes: the loss is softplus of a normal margin, integrated by Gauss-Hermite quadrature.
    z = head(hidden).detach()[0]
    other = 1 - int(target[0])
    mean, deviation = float(z[other] - z[int(target[0])]), sigma * math.sqrt(2) * float(hidden.norm())
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi)
    smoothed = float(torch.trapezoid(functional.softplus(mean + deviation * grid) * density, grid))
    decayed = math.log1p(math.exp(mean)) + sigma**2 / 2 * float(hidden.square().sum())
    assert float(found.gap) == pytest.approx(smoothed - decayed, abs=5 * float(found.error))
    assert smoothed < decayed
    with pytest.raises(ArgumentError, match="2 draws"):
        smoothing_gap(head, hidden, target, ActivationDecay(), 0.1, 1)


def test_layerwise_activations() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(4, 2, 6)
    with recording(model[0], model[1]) as seen:
        model(x)
    penalty = LayerwiseActivation(0.1, 0.2)(seen.outputs, model[3].weight)
    first = model[0](x)
    expected = 0.1 * (first.square().sum() + first.relu().square().sum()) / 4 + 0.2 * model[3].weight.square().sum()
    assert torch.allclose(penalty, expected)
    penalty.backward()
    assert model[0].weight.grad is not None
    with pytest.raises(ArgumentError, match="head"):
        LayerwiseActivation(head=-1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    hidden = (300 * torch.ones(2, 4)).to(dtype).requires_grad_()
    # Squares of float16 overflow at 256; the penalty is wider.
    found = ActivationDecay(0.1)(hidden)
    assert float(found.detach()) == pytest.approx(0.005 * 4 * 90_000, rel=1e-5)
    found.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == dtype
    head = nn.Linear(4, 3).to(dtype)
    loss = DecayedCrossEntropy(head, TaylorDecay(0.1))(hidden, torch.tensor([0, 2]))
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())


def test_a_certain_prediction_has_no_taylor_term_and_no_nan() -> None:
    logits = torch.tensor([[80.0, 0.0, -1000.0]], requires_grad=True)
    TaylorDecay(1.0)(torch.ones(1, 2), logits).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_misuse_is_refused() -> None:
    for build in (lambda: ActivationDecay(-1.0), lambda: TaylorDecay(math.inf), lambda: ActivationDecay(0.1, 1)):
        with pytest.raises(ArgumentError):
            build()
    with pytest.raises(ArgumentError, match="reduction"):
        DecayedCrossEntropy(nn.Linear(2, 2), ActivationDecay(), reduction="average")
    with pytest.raises(ShapeError, match="class for each"):
        DecayedCrossEntropy(nn.Linear(2, 2), ActivationDecay())(torch.zeros(3, 2), torch.zeros(2).long())
