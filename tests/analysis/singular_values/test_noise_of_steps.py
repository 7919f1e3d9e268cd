"""What the noise of many steps of plain SGD adds up to: the stationary law near a minimum, and the printed formulas."""

import math

import pytest
import torch
from scipy.linalg import solve_continuous_lyapunov
from torch import Tensor

from lipkit import analysis


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def root(covariance: Tensor) -> Tensor:
    """The symmetric root."""
    values, basis = torch.linalg.eigh(covariance)
    return (basis * values.clamp(min=0).sqrt()) @ basis.mT


def test_near_a_minimum_the_largest_value_scatters_as_an_ornstein_uhlenbeck_process():
    """Plain SGD on a quadratic loss with constant noise: dx = -H x dt + (rate C)^(1/2) dB, whose stationary covariance
    solves H S + S H = rate C. Its Ito terms give mean and variance of sigma_1 over many trainings.
    """
    rate, chains = 0.02, 4000
    centre = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.5, 0.0]], dtype=torch.float64)
    mixed = normal(6, 6, seed=1)
    hessian = torch.eye(6, dtype=torch.float64) + mixed @ mixed.mT / 6
    spread = normal(6, 6, seed=2)
    noise = spread @ spread.mT / 2
    # Where steps are short the discrete law S = (1 - rate H) S (1 - rate H) + rate^2 C is the same to first order.
    stationary = torch.from_numpy(solve_continuous_lyapunov(hessian.numpy(), rate * noise.numpy()))
    position, factor = torch.zeros(chains, 6, dtype=torch.float64), root(noise)
    step = torch.eye(6, dtype=torch.float64) - rate * hessian
    source = torch.Generator().manual_seed(3)
    for _ in range(400):  # the slowest direction forgets in 1 / (rate H) = 50 steps
        drawn = torch.randn(chains, 6, dtype=torch.float64, generator=source)
        position = position @ step - rate * drawn @ factor
    seen = torch.linalg.svdvals(centre + position.reshape(chains, 2, 3))[:, 0]
    terms = analysis.ito_terms(centre, lambda s: s[0], torch.zeros_like(centre), root(stationary).reshape(6, 2, 3))
    # A variance of 4,000 draws is known to 2.2 %, four times over, and the rate changes it by rate |H| / 2 = 4 %.
    assert float(seen.var()) == pytest.approx(terms.variance, rel=0.13)
    # Less its first-order part, whose mean is zero, the mean is known well enough to see the second-order one.
    bent = seen - 3 - position[:, 0]
    error = float(bent.std()) / math.sqrt(chains)
    assert terms.curvature > 20 * error
    # Terms of order four are about 3 S / gap^2 of it, that is 3 %.
    assert float(bent.mean()) == pytest.approx(terms.curvature, abs=4 * error + 0.08 * terms.curvature)


def test_noise_that_is_moved_back_scatters_less_than_it_adds_up_to():
    """One weight at the minimum of (x - 1)^2 / 2: the printed variance of log sigma is that of the noise alone."""
    rate, size, chains = 0.01, 0.2, 4000
    one = torch.ones(1, 1, dtype=torch.float64)
    terms = analysis.ito_terms(one, analysis.log_spectral_norm, 0 * one, math.sqrt(rate) * size * one[None])
    assert terms.variance == pytest.approx(rate * size**2, rel=1e-12)
    weight, source = torch.ones(chains, dtype=torch.float64), torch.Generator().manual_seed(0)
    ratios: list[float] = []
    for k in range(1, 201):
        drawn = torch.randn(chains, dtype=torch.float64, generator=source)
        weight = weight - rate * (weight - 1 + size * drawn)
        if k % 100 == 0:
            ratios.append(float(weight.log().var()) / (terms.variance * k * rate))
    # A variance of 4,000 draws is known to 2.2 %, three times over; steps of 0.01 change it by 1 %.
    assert ratios == pytest.approx([(1 - math.exp(-2 * t)) / (2 * t) for t in (1, 2)], rel=0.08)


def test_the_printed_root_is_none_and_every_root_has_the_same_terms():
    """Gradients of samples, centred: rows of their matrix are a root of the covariance as good as the symmetric one."""
    gradients = normal(4, 2, 3, seed=5)
    rows = (gradients - gradients.mean(0)).flatten(1) / math.sqrt(4 * 3)
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    # Centring leaves a zero, which has no inverse.
    assert float(values[-1]) < 1e-15 * 10
    left, values, right = left[:, :-1], values[:-1], right[:-1]
    covariance = rows.mT @ rows
    # Powers of the eigenvalues, which are squares of these values.
    moved, back = rows.mT @ left, torch.diag(1 / values)
    assert torch.allclose(moved @ back @ torch.diag(values**2) @ back @ moved.mT, covariance, atol=1e-14)
    printed = moved @ back @ torch.diag(values) @ back @ moved.mT
    assert float((printed - covariance).abs().max()) > 0.1 * float(covariance.abs().max())
    symmetric = moved @ back @ moved.mT
    assert torch.allclose(symmetric @ symmetric, covariance, atol=1e-14)
    matrix, drift = normal(2, 3, seed=6), torch.zeros(2, 3, dtype=torch.float64)
    one, other = (
        analysis.ito_terms(matrix, analysis.log_spectral_norm, drift, noises.reshape(-1, 2, 3))
        for noises in (rows, symmetric)
    )
    assert one.variance == pytest.approx(other.variance, rel=1e-12)
    assert one.curvature == pytest.approx(other.curvature, rel=1e-12)
