"""Outward normals of points on a closed surface: directions by planes, sides by one system."""

import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.errors import ArgumentError

# Neighbours whose plane gives a direction, for each dimension, and at least; those that smooth the kernel.
_PLANE, _LEAST, _SMOOTHING = 4, 8, 7
# Factor on the diagonal of the system: how much noise it forgives.
_RIDGE = 2.0
# Points of the system, whose cost is cubic; the others take the side of the nearest one.
_SYSTEM = 4096
# Neighbours that may disagree, and how much of the surface may be missing, before the sides count as unknown.
_DISAGREE, _OPEN = 0.15, 0.25


def outward_normals(cloud: Float64[Tensor, "n d"], seed: int) -> Float64[Tensor, "n d"]:
    """Unit normals of points on a closed surface, estimated; points that do not show two sides are refused.

    The direction at a point is that in which its nearest neighbours spread least. The side comes from all points at
    once: vectors v_j for which the Gauss integral

        w(x) = sum_j <v_j, p_j - x> / max(|p_j - x|, h_j)^d

    has one value at every point, as on the surface of a solid (twice that inside); among them those with the least
    squares. h_j is how far the neighbours are.

    Guarantee: none, these are estimates. They are refused where 15 % of the neighbours lie on opposite sides, or where
    normals do not cancel as those of a closed surface do. Fewer wrong sides pass, above all at parts that are thinner
    than the points are apart (0.2 to 3 % of 2,048 points on seven meshes), and so do small holes.
    Cost: a system of n equations, n <= 4,096.
    Reference: Lin, Xiao, Shi, Wang 2022 (parametric Gauss reconstruction); Hoppe et al. 1992 for the directions.
    """
    # A copy of a point says nothing, and has no distance to divide by.
    cloud, place = cloud.unique(dim=0, return_inverse=True)
    n, dim = cloud.shape
    count = min(n - 1, max(_LEAST, _PLANE * dim))
    distance, index = _neighbors(cloud, count)
    around = cloud[torch.cat([torch.arange(n)[:, None], index], 1)]
    spread = around - around.mean(1, keepdim=True)
    normals = torch.linalg.eigh(spread.mT @ spread).eigenvectors[:, :, 0]
    chosen = torch.randperm(n, generator=generator(seed))[:_SYSTEM]
    vectors = _solve(cloud[chosen])
    _, nearest = scipy.spatial.KDTree(cloud[chosen].numpy()).query(cloud.numpy())
    side = (normals * vectors[torch.as_tensor(nearest)]).sum(1, keepdim=True).sign()
    normals = side * normals
    disagree = 1 - float(((normals[:, None] * normals[index]).sum(2) > 0).double().mean())
    if disagree > _DISAGREE:
        raise ArgumentError(
            f"The points do not tell inside from outside: {disagree:.0%} of neighbours lie on opposite sides. Give "
            "normals, more points, or points with less noise, or train sdf.one_class.OneClass on a layer around them."
        )
    # Normals times areas sum to 0 on a closed surface.
    area = distance[:, -1:] ** (dim - 1)
    missing = float(torch.linalg.vector_norm((area * normals).sum(0)) / area.sum())
    if missing > _OPEN:
        raise ArgumentError(
            f"The points look like a part of a surface: their normals sum to {missing:.0%} of its area, to 0 if it is "
            "closed. Give points of all sides, or normals."
        )
    return normals[place]


def _neighbors(cloud: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances to the nearest other points, and their indices."""
    distance, index = scipy.spatial.KDTree(cloud.numpy()).query(cloud.numpy(), k=count + 1)
    return torch.as_tensor(distance)[:, 1:], torch.as_tensor(index)[:, 1:]


def _solve(cloud: Tensor) -> Tensor:
    """The vectors of the integral: the least ones, with a ridge for noise."""
    n, dim = cloud.shape
    smooth = _neighbors(cloud, min(n - 1, _SMOOTHING))[0].mean(1)
    # In units of the spacing, so that no power leaves the range of float64.
    cloud, smooth = cloud / smooth.median(), smooth / smooth.median()
    gap = cloud[None] - cloud[:, None]
    length = torch.maximum(torch.linalg.vector_norm(gap, dim=2), smooth[:, None])
    rows = (gap / length[..., None] ** dim).reshape(n, -1)
    system = rows @ rows.mT
    system.diagonal().mul_(_RIDGE)
    found = torch.linalg.solve(system, torch.ones(n, dtype=torch.float64))
    return (rows.mT @ found).view(n, dim)
