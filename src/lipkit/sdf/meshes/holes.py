"""Holes of a mesh: the edges that are not passed once in each direction, and caps over them."""

from collections import defaultdict
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.sdf.meshes.triangles import Triangles


def boundary(surface: Triangles) -> Int64[Tensor, "k 2"]:
    """Edges that faces pass more often in this direction than in the other, once for each time more.

    They are the boundary of the surface as a chain. It is closed if there are none: then its winding number is a whole
    number off the surface, whatever holes, folds and intersections it has otherwise.
    """
    edges, net, _ = _net_edges(surface)
    directed = torch.where((net < 0)[:, None], edges.flip(1), edges)
    return directed.repeat_interleave(net.abs(), dim=0)


def boundary_loops(surface: Triangles) -> list[list[int]]:
    """The boundary as closed walks through different vertices, in the direction in which faces pass them."""
    onward: dict[int, list[int]] = defaultdict(list)
    for start, end in boundary(surface).tolist():
        onward[start].append(end)
    loops: list[list[int]] = []
    for start in list(onward):
        # As many edges end in a vertex as begin there, so a walk can only stop where it began.
        while onward[start]:
            path, places, here = [start], {start: 0}, start
            while True:
                here = onward[here].pop()
                if here in places:
                    first = places[here]
                    loops.append(path[first:])
                    for gone in path[first + 1 :]:
                        del places[gone]
                    del path[first + 1 :]
                    if here == start:
                        break
                else:
                    places[here] = len(path)
                    path.append(here)
    return loops


def require_closed(surface: Triangles) -> None:
    """Refuse a surface that has no inside: one whose boundary is not empty."""
    _, net, uses = _net_edges(surface)
    if len(net) == 0:
        return
    turned = int(((net.abs() == 2) & (uses == 2)).sum())
    if turned:
        raise ArgumentError(
            f"The faces of the mesh are not oriented alike: {turned} edges are passed in the same direction by both of "
            "their faces; orient the faces first, for example with trimesh.repair.fix_winding."
        )
    loops = len(boundary_loops(surface))
    raise ArgumentError(
        f"The mesh is open, so it has no inside: {len(net)} edges in {loops} loops have faces on one side only; cap "
        "its holes with sdf.close_holes(vertices, faces). If it only looks closed, merge vertices of equal coordinates "
        "with sdf.weld(mesh)."
    )


def close_holes(vertices: Float64[Tensor, "v 3"] | Any, faces: Int64[Tensor, "f 3"] | Any) -> Triangles:
    """The surface with a cap over each hole: a fan of triangles from the mean of its boundary loop.

    Guarantee: the result is closed, so that `Mesh` takes it. Caps may cross the surface where a loop is far from flat.
    Cost: one sort of the edges.
    """
    surface = Triangles(vertices, faces)
    caps, centers = [], []
    for loop in boundary_loops(surface):
        center = len(surface.vertices) + len(centers)
        start = torch.tensor(loop)
        centers.append(surface.vertices[start].mean(0))
        # Against the direction of the faces, as a neighbour passes an edge.
        caps.append(torch.stack([start.roll(-1), start, torch.full_like(start, center)], 1))
    if not caps:
        return surface
    return Triangles(torch.cat([surface.vertices, torch.stack(centers)]), torch.cat([surface.faces, *caps]))


def _net_edges(surface: Triangles) -> tuple[Tensor, Tensor, Tensor]:
    """Edges that are not balanced, how much more often they are passed upwards than downwards, and how often at all."""
    starts, ends = surface.faces.flatten(), surface.faces.roll(-1, 1).flatten()
    key = torch.minimum(starts, ends) * len(surface.vertices) + torch.maximum(starts, ends)
    found, place, uses = torch.unique(key, return_inverse=True, return_counts=True)
    net = torch.zeros(len(found), dtype=torch.int64).index_add_(0, place, (ends - starts).sign())
    open_ones = net != 0
    found = found[open_ones]
    edges = torch.stack([found // len(surface.vertices), found % len(surface.vertices)], 1)
    return edges, net[open_ones], uses[open_ones]
