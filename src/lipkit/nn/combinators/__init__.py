"""Ways to put layers together that know the constant of the whole."""

from lipkit.nn.combinators.branch import Branch as Branch
from lipkit.nn.combinators.branch import Concat as Concat
from lipkit.nn.combinators.branch import Parallel as Parallel
from lipkit.nn.combinators.normalize import Normalize as Normalize
from lipkit.nn.combinators.residual import ConvexResidual as ConvexResidual
from lipkit.nn.combinators.residual import ScaledResidual as ScaledResidual
from lipkit.nn.combinators.scale import Scale as Scale
from lipkit.nn.combinators.sums import ConvexSum as ConvexSum
from lipkit.nn.combinators.sums import ScaledSum as ScaledSum
