"""How the forecast of a training changes with the batch size, with noise in gradients, and with wrong labels."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.analysis.dynamics.laws.forecast import Forecast
from lipkit.analysis.dynamics.noise.gradient_noise import Noise
from lipkit.analysis.singular_values.curvature_of_values import singular_value_hessian
from lipkit.errors import ArgumentError


def batch_size_law(forecast: Forecast, factor: float) -> Forecast:
    """The forecast with batches `factor` times as large, at the same rate and number of steps.

    The covariance of the batch gradient is that of samples over M, so both terms that are linear in it fall:

        diffusion = C / M,   curvature = C' / M,   Var[K] = E[K]^2 (exp(C / M) - 1) ~ E[K]^2 C / M.

    Hence one initialisation and several orders of the samples give nearly one curve if M is large.

    Guarantee: ESTIMATE; takes the drift and the path for unchanged. Cost: two divisions.
    Reference: Luo 2025, proposition 4.8.2, in which only the diffusion depends on M.
    """
    if not 0 < factor < math.inf:
        raise ArgumentError(f"A batch grows by a positive, finite factor, got {factor}.")
    return replace(forecast, curvature=forecast.curvature / factor, diffusion=forecast.diffusion / factor)


def gradient_noise_law(
    forecast: Forecast, share: float, noise: Sequence[Noise] = (), rate: float = 0.0, steps: int = 0
) -> Forecast:
    """The forecast if each step takes sqrt(share) g + sqrt(1 - share) n in the place of g, n independent of g, mean 0.

        drift: times share^(1/2);   curvature, diffusion: share times the old one + (1 - share) times that of n.

    So scaling alone lowers K, and noise raises it: of one deviation in every entry, the second part is often the larger
    one. It must not be left out, and "noise in gradients lowers K" is no fact.

    Guarantee: ESTIMATE; takes the path for unchanged, and the noise terms for constant. Cost: arithmetic.
    Reference: Luo 2025, section 4.8.4, which neglects the second part; the full form is ours.

    Args:
        forecast: Without noise.
        share: rho in [0, 1]; 1 changes nothing.
        noise: The terms of n, one for each layer that gets it, as `isotropic_noise` computes them; none if n = 0.
        rate: Of the steps, if there is noise.
        steps: Their number.
    """
    if not 0 <= share <= 1:
        raise ArgumentError(f"The share of the gradient lies in [0, 1], got {share}.")
    if noise and (not 0 < rate < math.inf or steps < 1):
        raise ArgumentError(f"Noise acts through steps at a positive rate, got rate={rate} and steps={steps}.")
    # A step lasts its rate, and noise terms are without their own factor of it.
    rest = (1 - share) * steps * rate**2
    return replace(
        forecast,
        drift=forecast.drift * math.sqrt(share),
        curvature=share * forecast.curvature + rest * sum(one.curvature for one in noise),
        diffusion=share * forecast.diffusion + rest * sum(one.diffusion for one in noise),
    )


def isotropic_noise(weight: Float[Tensor, "m n"], deviation: float) -> Noise:
    """The noise terms, without the rate, of independent noise of one deviation s in every entry of a gradient.

        curvature = s^2 tr(H) / (2 sigma_1),   diffusion = s^2 / sigma_1^2,

    H the second derivative of sigma_1. Guarantee: ESTIMATE, at this weight. Cost: one decomposition. Ours.
    """
    if not 0 <= deviation < math.inf:
        raise ArgumentError(f"The deviation of noise is at least 0 and finite, got {deviation}.")
    hessian = singular_value_hessian(weight.detach())
    value = hessian.triplet()[0]
    return Noise(deviation**2 * hessian.trace() / (2 * value), deviation**2 / value**2)


def label_noise_law(forecast: Forecast, probability: float) -> Forecast:
    """The forecast if each label is replaced by a uniform one with a probability: share (1 - probability)^2, no noise.

        E[K] = K(0) exp(drift)^(1 - p) exp(curvature)^((1 - p)^2).

    Guarantee: ESTIMATE, a heuristic: it takes the gradient of uniform labels for zero, and their covariance too, which
    is false in general. Cost: arithmetic. Reference: Luo 2025, section 4.8.5.
    """
    if not 0 <= probability <= 1:
        raise ArgumentError(f"A probability lies in [0, 1], got {probability}.")
    return gradient_noise_law(forecast, (1 - probability) ** 2)


def fisher_curvature(weight: Float[Tensor, "m n"], gradients: Float[Tensor, "samples m n"], batch: int) -> float:
    """kappa without the rate near convergence, where the mean gradient is nearly zero: <H, F> / (2 sigma_1 batch).

    F is the mean of g g' over gradients g of log p of samples, not centred: the empirical Fisher matrix. So kappa > 0
    may stay where mu is nearly 0. Whether K grows without limit depends on how fast F falls: nothing is claimed.

    Guarantee: ESTIMATE, above the centred kappa by the curvature along the mean gradient.
    Cost: one decomposition, and a form for each sample. Reference: Luo 2025, proposition 4.8.1, with grad log p.

    Args:
        weight: Of one layer.
        gradients: Of the samples' losses -log p in this weight.
        batch: The size of the batches whose noise it is.
    """
    if batch < 1 or not len(gradients):
        raise ArgumentError(f"Both batch and samples count at least 1, got {batch} and {len(gradients)}.")
    hessian = singular_value_hessian(weight.detach())
    return float(torch.mean(hessian.form(gradients.detach()))) / (2 * hessian.triplet()[0] * batch)
