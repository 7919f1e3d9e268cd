"""Networks that are convex in their input, gradients of convex functions, and weights without negative entries."""

from lipkit.nn.convex.activations import CumulativeMax as CumulativeMax
from lipkit.nn.convex.activations import GroupLogSumExp as GroupLogSumExp
from lipkit.nn.convex.activations import GroupMax as GroupMax
from lipkit.nn.convex.circulant import SymmetricCirculant as SymmetricCirculant
from lipkit.nn.convex.convex_gradient import ConvexGradient as ConvexGradient
from lipkit.nn.convex.icnn import ICNN as ICNN
from lipkit.nn.convex.icnn import ConvexOutput as ConvexOutput
from lipkit.nn.convex.nonnegative import NonNegative as NonNegative
from lipkit.nn.convex.nonnegative import NonNegativeMap as NonNegativeMap
from lipkit.nn.convex.picnn import PICNN as PICNN
from lipkit.nn.convex.quadratic import ConvexQuadratic as ConvexQuadratic
from lipkit.nn.convex.stable_rank import stable_rank as stable_rank
from lipkit.nn.convex.stochastic import Orthostochastic as Orthostochastic
from lipkit.nn.convex.stochastic import Stochastic as Stochastic
