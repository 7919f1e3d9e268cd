"""Small meshes, and what is known of triangles without lipkit: exact fractions, and solid angles in many digits."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import torch
from torch import Tensor

Exact = Sequence[Any]


def box_mesh(low: Sequence[float], high: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Vertices and faces of a box, its normals outwards."""
    vertices = torch.tensor(list(itertools.product(*zip(low, high, strict=True))), dtype=torch.float64)
    squares = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [face for a, b, c, d in squares for face in ((a, b, c), (a, c, d))]
    return vertices, torch.tensor(faces)


def octahedron() -> tuple[Tensor, Tensor]:
    """Corners at distance 1 on the axes."""
    vertices = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    ring = [0, 1, 3, 4]
    faces = [(ring[i], ring[(i + 1) % 4], 2) for i in range(4)] + [(ring[(i + 1) % 4], ring[i], 5) for i in range(4)]
    return vertices, torch.tensor(faces)


def icosphere(times: int) -> tuple[Tensor, Tensor]:
    """An octahedron whose faces are cut in four so many times, its vertices on the unit sphere: convex."""
    vertices, faces = octahedron()
    points = vertices.tolist()
    for _ in range(times):
        middles: dict[tuple[int, int], int] = {}

        def middle(a: int, b: int, known: dict[tuple[int, int], int] = middles) -> int:
            key = (min(a, b), max(a, b))
            if key not in known:
                point = (
                    torch.tensor(points[a], dtype=torch.float64) + torch.tensor(points[b], dtype=torch.float64)
                ) / 2
                known[key] = len(points)
                points.append((point / point.norm()).tolist())
            return known[key]

        cut = []
        for a, b, c in faces.tolist():
            x, y, z = middle(a, b), middle(b, c), middle(c, a)
            cut += [(a, x, z), (x, b, y), (z, y, c), (x, y, z)]
        faces = torch.tensor(cut)
    return torch.tensor(points, dtype=torch.float64), faces


def tetrahedra(corners: Tensor) -> tuple[Tensor, Tensor]:
    """The surfaces of many tetrahedra (n, 4, 3) in one mesh: closed, however they overlap."""
    sides = torch.tensor([(0, 2, 1), (0, 1, 3), (1, 2, 3), (2, 0, 3)])
    return corners.reshape(-1, 3), (sides + 4 * torch.arange(len(corners))[:, None, None]).reshape(-1, 3)


def box_distance(x: Tensor, low: Sequence[float], high: Sequence[float]) -> Tensor:
    """The signed distance of a box in closed form, positive inside."""
    beyond = torch.maximum(torch.tensor(low).double() - x, x - torch.tensor(high).double())
    return -beyond.clamp(min=0).norm(dim=1) - beyond.amax(1).clamp(max=0)


def square_distance(point: Exact, corners: Sequence[Exact]) -> Fraction:
    """The squared distance from a point to a triangle, as a fraction: exact for the numbers as they are stored."""
    q, a, b, c = ([Fraction(number) for number in row] for row in (point, *corners))
    found = min(_to_segment(q, a, b), _to_segment(q, b, c), _to_segment(q, c, a))
    normal = _cross(_minus(b, a), _minus(c, a))
    size = _dot(normal, normal)
    if size and all(_dot(normal, _cross(_minus(e, s), _minus(q, s))) >= 0 for s, e in ((a, b), (b, c), (c, a))):
        return min(found, _dot(normal, _minus(q, a)) ** 2 / size)
    return found


def mesh_distance(point: Exact, corners: Tensor) -> Any:
    """The distance from a point to the nearest of all triangles, as a number of mpmath."""
    square = min(square_distance(point, triangle) for triangle in corners.tolist())
    return mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)


def winding_number(point: Exact, corners: Tensor) -> Any:
    """The sum of the solid angles of all triangles over 4 pi (Van Oosterom, Strackee 1983), in 40 digits."""
    with mpmath.workdps(40):
        total = mpmath.mpf(0)
        for triangle in corners.tolist():
            a, b, c = ([mpmath.mpf(x) - mpmath.mpf(y) for x, y in zip(row, point, strict=True)] for row in triangle)
            la, lb, lc = (mpmath.sqrt(_dot(v, v)) for v in (a, b, c))
            divisor = la * lb * lc + _dot(a, b) * lc + _dot(b, c) * la + _dot(c, a) * lb
            total += 2 * mpmath.atan2(_dot(a, _cross(b, c)), divisor)
        return total / (4 * mpmath.pi)


def _to_segment(q: list[Fraction], a: list[Fraction], b: list[Fraction]) -> Fraction:
    way, gap = _minus(b, a), _minus(q, a)
    size = _dot(way, way)
    share = min(max(_dot(gap, way) / size, Fraction(0)), Fraction(1)) if size else Fraction(0)
    left = [g - share * w for g, w in zip(gap, way, strict=True)]
    return _dot(left, left)


def _minus(a: Exact, b: Exact) -> list[Any]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _dot(a: Exact, b: Exact) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Exact, b: Exact) -> list[Any]:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
