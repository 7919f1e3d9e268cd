"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.network_field import Network as Network
from lipkit.sdf.walk import Walk as Walk
