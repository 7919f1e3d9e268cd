"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.meshes.deviation import Deviation as Deviation
from lipkit.sdf.meshes.deviation import deviation as deviation
from lipkit.sdf.meshes.holes import close_holes as close_holes
from lipkit.sdf.meshes.marching_cubes import extract as extract
from lipkit.sdf.meshes.mesh_field import Mesh as Mesh
from lipkit.sdf.meshes.mesh_files import read_mesh as read_mesh
from lipkit.sdf.meshes.mesh_files import write_mesh as write_mesh
from lipkit.sdf.meshes.surface_distances import SurfaceDistances as SurfaceDistances
from lipkit.sdf.meshes.surface_distances import SurfaceMean as SurfaceMean
from lipkit.sdf.meshes.surface_distances import hausdorff as hausdorff
from lipkit.sdf.meshes.surface_distances import mean_deviation as mean_deviation
from lipkit.sdf.meshes.surface_distances import sample_surface as sample_surface
from lipkit.sdf.meshes.surface_distances import surface_distances as surface_distances
from lipkit.sdf.meshes.triangles import Triangles as Triangles
from lipkit.sdf.meshes.triangles import weld as weld
from lipkit.sdf.network_field import Network as Network
