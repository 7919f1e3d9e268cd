"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.network_field import Network as Network
from lipkit.sdf.rays.clearance import ProvenDeviation as ProvenDeviation
from lipkit.sdf.rays.clearance import clearance as clearance
from lipkit.sdf.rays.swept_ball import Swept as Swept
from lipkit.sdf.rays.swept_ball import sweep as sweep
from lipkit.sdf.rays.trace import Traced as Traced
from lipkit.sdf.rays.trace import trace as trace
from lipkit.sdf.walk import Walk as Walk
