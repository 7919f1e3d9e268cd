"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.denoised import Denoised as Denoised
from lipkit.certify.smoothing.denoised import OneShotDiffusion as OneShotDiffusion
from lipkit.certify.smoothing.noisy import Noisy as Noisy
