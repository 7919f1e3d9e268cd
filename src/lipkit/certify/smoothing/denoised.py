"""Denoise, then classify: a classifier that never saw noise, made ready for smoothing."""

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError


@final
class Denoised(nn.Module):
    """x -> classifier(denoiser(x)), for any denoiser: a base for `Smoothed` where none was trained with noise.

    Guarantee: that of `Smoothed`, for the two together; nothing is asked of the denoiser but that it draws no numbers
    of its own. The better it restores images, the larger the radii. Cost: both.
    Reference: Salman et al. 2020 (denoised smoothing); Carlini et al. 2023, with `OneShotDiffusion`.

    Args:
        denoiser: Maps noisy inputs to inputs of the same shape.
        classifier: Maps a batch to logits.
    """

    def __init__(self, denoiser: Callable[[Tensor], Tensor], classifier: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.denoiser, self.classifier = denoiser, classifier

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """The logits of the restored inputs."""
        restored = self.denoiser(x)
        if restored.shape != x.shape:
            raise ShapeError(
                f"A denoiser keeps the shape of its input, got {tuple(restored.shape)} from {tuple(x.shape)}; put what "
                "changes it, such as resizing, into the classifier."
            )
        return self.classifier(restored)


@final
class OneShotDiffusion(nn.Module):
    """A diffusion model as a denoiser of images in [0, 1] with Gaussian noise sigma: one call at the step that fits.

        t:   sqrt(1 - a_t) / sqrt(a_t) = 2 sigma,   the nearest step        (a_t falls from 1 to 0)
        x_t = sqrt(a_t) (2 x - 1)                                          (images in [-1, 1] have noise 2 sigma)
        x_0 = (x_t - sqrt(1 - a_t) network(x_t, t)) / sqrt(a_t),   cut off at -1 and 1, back in [0, 1]

    Guarantee: none is needed, see `Denoised`. Cost: one pass of the network.
    Reference: Carlini et al. 2023 ((certified!!) adversarial robustness for free); Ho, Jain, Abbeel 2020.

    Args:
        network: Maps (x_t, t) with t of shape (batch,) to the noise in x_t. Where it also says the variance, in as many
            channels again, those are left out.
        alphas: The products a_0 > a_1 > ... of the schedule that the network was trained with, in (0, 1].
        sigma: Standard deviation of the noise, for images in [0, 1].
    """

    def __init__(
        self,
        network: Callable[[Tensor, Tensor], Tensor],
        alphas: Float[Tensor, " steps"],
        sigma: float,
    ) -> None:
        super().__init__()
        self.network, self.sigma = network, sigma
        schedule = alphas.detach().double().cpu()
        if schedule.ndim != 1 or not len(schedule):
            raise ShapeError(f"alphas is one number for each step, got shape {tuple(alphas.shape)}.")
        if not bool(((schedule > 0) & (schedule <= 1)).all() and (schedule.diff() < 0).all()):
            raise ArgumentError(
                "alphas are the cumulative products of a schedule, which fall and lie in (0, 1]; give "
                "torch.cumprod(1 - betas, 0)."
            )
        levels = ((1 - schedule) / schedule).sqrt()
        low, high = float(levels[0]) / 2, float(levels[-1]) / 2
        if not low <= sigma <= high:
            raise ArgumentError(
                f"The schedule has steps for sigma in [{low:.4g}, {high:.4g}] on images in [0, 1], got {sigma}; choose "
                "sigma there, or another model."
            )
        self.step = int((levels - 2 * sigma).abs().argmin())
        self.alpha = float(schedule[self.step])

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        """Images in [0, 1], from noisy ones."""
        scaled = math.sqrt(self.alpha) * (2 * x - 1)
        noise = self.network(scaled, torch.full((len(x),), self.step, device=x.device))
        if noise.shape[1:] not in (x.shape[1:], (2 * x.shape[1], *x.shape[2:])):
            raise ShapeError(
                f"The network says noise of shape {tuple(x.shape)}, with or without as many channels for its variance, "
                f"got {tuple(noise.shape)}."
            )
        clean = (scaled - math.sqrt(1 - self.alpha) * noise[:, : x.shape[1]]) / math.sqrt(self.alpha)
        return (clean.clamp(-1, 1) + 1) / 2

    def extra_repr(self) -> str:
        """The step that was chosen, for its text."""
        return f"sigma={self.sigma:g}, step={self.step}, alpha={self.alpha:.4g}"
