"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.combined.blends import Blend as Blend
from lipkit.sdf.combined.blends import CubicBlend as CubicBlend
from lipkit.sdf.combined.blends import ExponentialBlend as ExponentialBlend
from lipkit.sdf.combined.blends import QuadraticBlend as QuadraticBlend
from lipkit.sdf.combined.blends import RootBlend as RootBlend
from lipkit.sdf.combined.blends import SmoothIntersection as SmoothIntersection
from lipkit.sdf.combined.blends import SmoothUnion as SmoothUnion
from lipkit.sdf.combined.booleans import Complement as Complement
from lipkit.sdf.combined.booleans import Difference as Difference
from lipkit.sdf.combined.booleans import Intersection as Intersection
from lipkit.sdf.combined.booleans import Union as Union
from lipkit.sdf.combined.motions import Moved as Moved
from lipkit.sdf.combined.motions import Scaled as Scaled
from lipkit.sdf.combined.offsets import Offset as Offset
from lipkit.sdf.combined.offsets import Shell as Shell
from lipkit.sdf.exact.flats import Flats as Flats
from lipkit.sdf.exact.points import Points as Points
from lipkit.sdf.exact.solids import Box as Box
from lipkit.sdf.exact.solids import HalfSpace as HalfSpace
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.network_field import Network as Network
from lipkit.sdf.stated_field import Function as Function
