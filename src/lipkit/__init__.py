"""Lipschitz constants of neural networks: every number says what it proves.

lipkit.lipschitz(model, example)  ->  Bound: the best constant that can be proven, with a lower bound beside it
"""

from lipkit import analysis as analysis
from lipkit import bounds as bounds
from lipkit import certify as certify
from lipkit import data as data
from lipkit import errors as errors
from lipkit import linops as linops
from lipkit import losses as losses
from lipkit import nn as nn
from lipkit import norms as norms
from lipkit import optim as optim
from lipkit import privacy as privacy
from lipkit import regularizers as regularizers
from lipkit import sdf as sdf
from lipkit._runtime import Phase as Phase
from lipkit._runtime import Progress as Progress
from lipkit._version import __version__ as __version__
from lipkit.bound import L2 as L2
from lipkit.bound import Bound as Bound
from lipkit.bound import Kind as Kind
from lipkit.bound import Metric as Metric
from lipkit.bound import Rule as Rule
from lipkit.bound import Scope as Scope
from lipkit.bound import Witness as Witness
from lipkit.bounds.certificates.certificate import Certificate as Certificate
from lipkit.bounds.certificates.issue import certificate as certificate
from lipkit.bounds.certificates.verify import Verification as Verification
from lipkit.bounds.certificates.verify import verify as verify
from lipkit.bounds.lipschitz import lipschitz as lipschitz
from lipkit.bounds.lipschitz import pairwise as pairwise
from lipkit.norms import spectral_norm as spectral_norm
from lipkit.regions import Ball as Ball
from lipkit.regions import Box as Box
from lipkit.regions import Everywhere as Everywhere
from lipkit.regions import Region as Region
from lipkit.trace import Network as Network
from lipkit.trace.capture import capture as capture
