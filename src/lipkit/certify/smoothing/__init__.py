"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.certify_data import SmoothedEvaluation as SmoothedEvaluation
from lipkit.certify.smoothing.certify_data import certify_data as certify_data
from lipkit.certify.smoothing.certify_data import recertify as recertify
from lipkit.certify.smoothing.event import Event as Event
from lipkit.certify.smoothing.event import Method as Method
from lipkit.certify.smoothing.event import Theorem as Theorem
from lipkit.certify.smoothing.intervals import ClopperPearson as ClopperPearson
from lipkit.certify.smoothing.intervals import EmpiricalBernstein as EmpiricalBernstein
from lipkit.certify.smoothing.intervals import Hoeffding as Hoeffding
from lipkit.certify.smoothing.intervals import Interval as Interval
from lipkit.certify.smoothing.intervals import SubGaussian as SubGaussian
from lipkit.certify.smoothing.log import Log as Log
from lipkit.certify.smoothing.methods import Bonferroni as Bonferroni
from lipkit.certify.smoothing.methods import Cohen as Cohen
from lipkit.certify.smoothing.methods import IntersectionUnion as IntersectionUnion
from lipkit.certify.smoothing.samples import Moments as Moments
from lipkit.certify.smoothing.samples import Samples as Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax as Hardmax
from lipkit.certify.smoothing.simplex_maps import SimplexMap as SimplexMap
from lipkit.certify.smoothing.simplex_maps import Softmax as Softmax
from lipkit.certify.smoothing.simplex_maps import Sparsemax as Sparsemax
from lipkit.certify.smoothing.smoothed import Smoothed as Smoothed
from lipkit.certify.smoothing.smoothed import TooFewSamplesWarning as TooFewSamplesWarning
from lipkit.certify.smoothing.smoothed_radii import ABSTAIN as ABSTAIN
from lipkit.certify.smoothing.smoothed_radii import SmoothedRadii as SmoothedRadii
from lipkit.certify.smoothing.noise import Gaussian as Gaussian
