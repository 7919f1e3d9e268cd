"""Certificates: how far an input may move before its class can change, on paper, on data, under attack."""

from lipkit.certify import attacks as attacks
from lipkit.certify import text as text
from lipkit.certify.accuracy import accuracy as accuracy
from lipkit.certify.evaluation import Evaluation as Evaluation
from lipkit.certify.evaluation import Share as Share
from lipkit.certify.evaluation import Shares as Shares
from lipkit.certify.forward import Forward as Forward
from lipkit.certify.forward import Logits as Logits
from lipkit.certify.head import head_pairwise as head_pairwise
from lipkit.certify.intervals import Interval as Interval
from lipkit.certify.intervals import clopper_pearson as clopper_pearson
from lipkit.certify.intervals import lower_limit as lower_limit
from lipkit.certify.intervals import upper_limit as upper_limit
from lipkit.certify.intervals import wilson as wilson
from lipkit.certify.metrics import AverageRadius as AverageRadius
from lipkit.certify.metrics import CertifiedAccuracy as CertifiedAccuracy
from lipkit.certify.metrics import CleanAccuracy as CleanAccuracy
from lipkit.certify.metrics import RunningMetric as RunningMetric
from lipkit.certify.radius import Radii as Radii
from lipkit.certify.radius import binary_radius as binary_radius
from lipkit.certify.radius import radius as radius
from lipkit.certify.records import Records as Records
from lipkit.certify.records import Sample as Sample
