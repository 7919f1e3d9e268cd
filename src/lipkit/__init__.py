"""Lipschitz constants of neural networks: every number says what it proves.

lipkit.spectral_norm(torch.nn.Conv2d(3, 16, 3, padding=1), in_shape=(3, 32, 32))  ->  Bound
"""

from lipkit import errors as errors
from lipkit import linops as linops
from lipkit import norms as norms
from lipkit.bound import L2 as L2
from lipkit.bound import Bound as Bound
from lipkit.bound import Metric as Metric
from lipkit.bound import Of as Of
from lipkit.bound import Rule as Rule
from lipkit.bound import Witness as Witness
from lipkit.kind import Kind as Kind
from lipkit.norms import spectral_norm as spectral_norm
from lipkit.regions import Ball as Ball
from lipkit.regions import Box as Box
from lipkit.regions import Everywhere as Everywhere
from lipkit.regions import Region as Region
