"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.event import Event as Event
from lipkit.certify.smoothing.event import Method as Method
from lipkit.certify.smoothing.event import Theorem as Theorem
from lipkit.certify.smoothing.intervals import ClopperPearson as ClopperPearson
from lipkit.certify.smoothing.intervals import EmpiricalBernstein as EmpiricalBernstein
from lipkit.certify.smoothing.intervals import Hoeffding as Hoeffding
from lipkit.certify.smoothing.intervals import Interval as Interval
from lipkit.certify.smoothing.intervals import SubGaussian as SubGaussian
from lipkit.certify.smoothing.methods import Bonferroni as Bonferroni
from lipkit.certify.smoothing.methods import Cohen as Cohen
from lipkit.certify.smoothing.methods import IntersectionUnion as IntersectionUnion
from lipkit.certify.smoothing.simplex_maps import Hardmax as Hardmax
from lipkit.certify.smoothing.simplex_maps import SimplexMap as SimplexMap
from lipkit.certify.smoothing.simplex_maps import Softmax as Softmax
from lipkit.certify.smoothing.simplex_maps import Sparsemax as Sparsemax
