"""Randomized smoothing: certificates for any classifier, from votes under noise."""

from lipkit.certify.smoothing.event import Event as Event
from lipkit.certify.smoothing.event import Method as Method
from lipkit.certify.smoothing.event import Theorem as Theorem
from lipkit.certify.smoothing.statistics.betting import BetaBinomial as BetaBinomial
from lipkit.certify.smoothing.statistics.betting import betting_interval as betting_interval
from lipkit.certify.smoothing.statistics.intervals import ClopperPearson as ClopperPearson
from lipkit.certify.smoothing.statistics.intervals import EmpiricalBernstein as EmpiricalBernstein
from lipkit.certify.smoothing.statistics.intervals import Hoeffding as Hoeffding
from lipkit.certify.smoothing.statistics.intervals import Interval as Interval
from lipkit.certify.smoothing.statistics.intervals import SubGaussian as SubGaussian
from lipkit.certify.smoothing.statistics.low_variance import LowVariance as LowVariance
from lipkit.certify.smoothing.statistics.methods import Bonferroni as Bonferroni
from lipkit.certify.smoothing.statistics.methods import ClassPartition as ClassPartition
from lipkit.certify.smoothing.statistics.methods import Cohen as Cohen
from lipkit.certify.smoothing.statistics.methods import IntersectionUnion as IntersectionUnion
from lipkit.certify.smoothing.statistics.prediction import ABSTAIN as ABSTAIN
from lipkit.certify.smoothing.statistics.prediction import top_class as top_class
from lipkit.certify.smoothing.statistics.sample_size import Anytime as Anytime
from lipkit.certify.smoothing.statistics.sample_size import least_samples as least_samples
