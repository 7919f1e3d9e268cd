"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.curves import CertifiedSet as CertifiedSet
from lipkit.certify.smoothing.curves import envelope as envelope
from lipkit.certify.smoothing.curves import read_published_log as read_published_log
from lipkit.certify.smoothing.denoised import Denoised as Denoised
from lipkit.certify.smoothing.denoised import OneShotDiffusion as OneShotDiffusion
from lipkit.certify.smoothing.noisy import Noisy as Noisy
