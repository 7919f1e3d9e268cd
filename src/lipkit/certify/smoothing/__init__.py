"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.curves import CertifiedSet as CertifiedSet
from lipkit.certify.smoothing.curves import envelope as envelope
from lipkit.certify.smoothing.curves import read_published_log as read_published_log
from lipkit.certify.smoothing.denoised import Denoised as Denoised
from lipkit.certify.smoothing.denoised import OneShotDiffusion as OneShotDiffusion
from lipkit.certify.smoothing.noise import Constants as Constants
from lipkit.certify.smoothing.noise import Gaussian as Gaussian
from lipkit.certify.smoothing.noise import Laplace as Laplace
from lipkit.certify.smoothing.noise import Noise as Noise
from lipkit.certify.smoothing.noise import PairRadii as PairRadii
from lipkit.certify.smoothing.noise import Uniform as Uniform
from lipkit.certify.smoothing.noisy import Noisy as Noisy
from lipkit.certify.smoothing.simplex_maps import Hardmax as Hardmax
from lipkit.certify.smoothing.simplex_maps import SimplexMap as SimplexMap
from lipkit.certify.smoothing.simplex_maps import Softmax as Softmax
from lipkit.certify.smoothing.simplex_maps import Sparsemax as Sparsemax
