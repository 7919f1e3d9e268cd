"""Formulas on training dynamics that do not hold as printed: each beside the right form."""

import math
from itertools import product

import pytest
import torch
from torch import nn

import lipkit
from lipkit import analysis
from lipkit.analysis import Forecast

RATE = 0.1
DIAGONAL = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))


def printed_mean_log(one: Forecast) -> float:
    """The trend of log K from the sums of the survey's section 2.9 alone."""
    return one.log_initial + one.drift + one.curvature


def printed_gradient_noise(one: Forecast, share: float) -> Forecast:
    """Thesis, section 4.8.4: the part of the noise itself is neglected."""
    return Forecast(one.log_initial, one.drift * math.sqrt(share), one.curvature * share, one.diffusion * share)


def printed_batch_size(one: Forecast, factor: float) -> Forecast:
    """Thesis, section 4.8.6: the batch size affects the diffusion only."""
    return Forecast(one.log_initial, one.drift, one.curvature, one.diffusion / factor)


def test_the_logarithm_drifts_down_by_half_the_diffusion():
    # One weight 1, gradients +1 and -1 with equal probability: K is 0.9 or 1.1, mu = kappa = 0, lambda^2 = rate.
    truth = (math.log(0.9) + math.log(1.1)) / 2
    model = Forecast(0.0, 0.0, 0.0, RATE * RATE)
    # The next order is that of rate^4.
    assert model.mean_log == pytest.approx(truth, abs=RATE**4)
    assert printed_mean_log(model) != pytest.approx(truth, abs=RATE**4)


def test_the_norm_of_a_convolution_is_not_that_of_its_kernel():
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular", bias=False)
    layer.weight.data.fill_(1.0)
    images = torch.eye(64).reshape(64, 1, 8, 8)
    dense = layer(images).detach().flatten(1)
    truth = float(torch.linalg.matrix_norm(dense, 2))
    printed = float(torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2))
    # Sums of nine ones in float32.
    assert truth == pytest.approx(9, rel=1e-5)
    assert printed == pytest.approx(3, rel=1e-5)
    assert lipkit.spectral_norm(layer, (1, 8, 8)).value >= truth * (1 - 1e-5)
    assert printed < truth / 2
    assert "do not bound" in analysis.AsMatrix().label


def test_the_fisher_matrix_has_gradients_of_log_p():
    # p(1) = 0.9 by one logit: the matrix is one number.
    p = torch.tensor(0.9, dtype=torch.float64)
    logit = torch.logit(p).requires_grad_()
    probabilities = torch.stack([1 - torch.sigmoid(logit), torch.sigmoid(logit)])
    right = printed = 0.0
    for chance in probabilities:
        (of_log,) = torch.autograd.grad(chance.log(), logit, retain_graph=True)
        (of_chance,) = torch.autograd.grad(chance, logit, retain_graph=True)
        right += float(chance.detach() * of_log**2)
        printed += float(chance.detach() * of_chance**2)
    loss = -(1 - p) * probabilities[0].log() - p * probabilities[1].log()
    (slope,) = torch.autograd.grad(loss, logit, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, logit)
    # The information is the expected curvature of -log p, in closed form p (1 - p).
    assert right == pytest.approx(float(curvature), rel=1e-12)
    assert right == pytest.approx(0.09, rel=1e-12)
    assert printed == pytest.approx(0.0081, rel=1e-12)


def test_a_positive_kappa_need_not_grow_without_limit():
    # kappa = e^-t: positive at all times, and its integral is 1 at most.
    ends = [Forecast(0.0, 0.0, -math.expm1(-time), 0.0).log_mean for time in (1.0, 10.0, 1000.0)]
    assert ends == sorted(ends)
    assert math.exp(ends[-1]) == pytest.approx(math.e, rel=1e-12)


def test_noise_in_every_entry_is_not_negligible():
    noise = analysis.isotropic_noise(DIAGONAL, 1.0)
    still = Forecast(math.log(2), 0.0, 0.0, 0.0)
    law = analysis.gradient_noise_law(still, 0.0, [noise], RATE, 1)
    assert RATE * noise.curvature == pytest.approx(1 / 30, rel=1e-12)
    draws = torch.randn(200_000, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = sum(torch.linalg.matrix_norm(DIAGONAL + sign * RATE * draws, 2) for sign in (1, -1)) / 2
    assert isinstance(moved, torch.Tensor)
    # Four standard errors of the mean, and the next order, RATE^4.
    room = 4 * float(moved.std()) / 200_000**0.5 + RATE**4
    assert math.exp(law.log_mean) == pytest.approx(float(moved.mean()), abs=room)
    assert math.exp(printed_gradient_noise(still, 0.0).log_mean) != pytest.approx(float(moved.mean()), abs=10 * room)


def test_the_batch_size_changes_the_growth_too():
    # Two samples with the gradients +G and -G, G in the lower left corner: no drift, no diffusion, only curvature.
    gradient = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    mean = {}
    for batch in (1, 2):
        means = torch.tensor([sum(signs) / batch for signs in product((1.0, -1.0), repeat=batch)], dtype=torch.float64)
        values = torch.linalg.matrix_norm(DIAGONAL - RATE * means[:, None, None] * gradient, 2)
        mean[batch] = float(values.log().mean()) - math.log(2)
    kappa = RATE / 6
    one = Forecast(0.0, 0.0, RATE * kappa, 0.0)
    # sigma^2 = 4 + a^2 4/3 + ...: the next order is a^4 / 10, with a = RATE.
    assert one.mean_log == pytest.approx(mean[1], abs=RATE**4)
    assert analysis.batch_size_law(one, 2).mean_log == pytest.approx(mean[2], abs=RATE**4)
    assert printed_batch_size(one, 2).mean_log != pytest.approx(mean[2], abs=RATE**4)
