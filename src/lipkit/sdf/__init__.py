"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.meshes.holes import close_holes as close_holes
from lipkit.sdf.meshes.mesh_field import Mesh as Mesh
from lipkit.sdf.meshes.mesh_files import read_mesh as read_mesh
from lipkit.sdf.meshes.mesh_files import write_mesh as write_mesh
from lipkit.sdf.meshes.triangles import Triangles as Triangles
from lipkit.sdf.meshes.triangles import weld as weld
from lipkit.sdf.network_field import Network as Network
