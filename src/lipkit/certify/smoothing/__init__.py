"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.constants import BoundedRange as BoundedRange
from lipkit.certify.smoothing.constants import LipschitzCoordinate as LipschitzCoordinate
from lipkit.certify.smoothing.constants import LipschitzJoint as LipschitzJoint
from lipkit.certify.smoothing.constants import LocalQuantileScale as LocalQuantileScale
from lipkit.certify.smoothing.constants import QuantileScale as QuantileScale
from lipkit.certify.smoothing.constants import Salman as Salman
from lipkit.certify.smoothing.constants import SmoothingLaw as SmoothingLaw
from lipkit.certify.smoothing.constants import optimal_sigma as optimal_sigma
from lipkit.certify.smoothing.constants import smoothed_lipschitz as smoothed_lipschitz
from lipkit.certify.smoothing.noise import Constants as Constants
from lipkit.certify.smoothing.noise import Gaussian as Gaussian
from lipkit.certify.smoothing.noise import Laplace as Laplace
from lipkit.certify.smoothing.noise import Noise as Noise
from lipkit.certify.smoothing.noise import PairRadii as PairRadii
from lipkit.certify.smoothing.noise import Uniform as Uniform
from lipkit.certify.smoothing.simplex_maps import Hardmax as Hardmax
from lipkit.certify.smoothing.simplex_maps import SimplexMap as SimplexMap
from lipkit.certify.smoothing.simplex_maps import Softmax as Softmax
from lipkit.certify.smoothing.simplex_maps import Sparsemax as Sparsemax
from lipkit.certify.smoothing.vote_statistics import distance_to_uniform as distance_to_uniform
from lipkit.certify.smoothing.weierstrass import SampleMean as SampleMean
from lipkit.certify.smoothing.weierstrass import smooth as smooth
from lipkit.certify.smoothing.weierstrass import stein_gradient as stein_gradient
from lipkit.certify.smoothing.weierstrass import stein_jacobian as stein_jacobian
