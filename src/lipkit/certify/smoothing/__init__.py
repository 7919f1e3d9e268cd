"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.simplex_maps import Hardmax as Hardmax
from lipkit.certify.smoothing.simplex_maps import SimplexMap as SimplexMap
from lipkit.certify.smoothing.simplex_maps import Softmax as Softmax
from lipkit.certify.smoothing.simplex_maps import Sparsemax as Sparsemax
