"""A tree of boxes around pieces of triangles, searched for many points at once."""

import math
from collections.abc import Callable, Iterator
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.sdf.meshes.pieces import cut

_FAN: Final = 8
# Pairs of points and boxes at once: some megabytes for each intermediate.
_AT_ONCE: Final = 2**14
# Middles of edges are rounded once for each halving; a box grows by more than all of them, relative to coordinates.
_ROUNDED_MIDDLES: Final = 2.0**-45

# For points and the boxes below a node: which pairs go on. Boxes are (pairs, 3, boxes), points (pairs, 3, 1).
Keeps = Callable[[Int64[Tensor, " k"], Float64[Tensor, "k 3 b"], Float64[Tensor, "k 3 b"]], Tensor]


@final
class BoxTree:
    """Boxes around triangles, boxes around neighbouring boxes, up to one; long triangles are cut into pieces first.

    Cost: O(f log f) to build. A search visits what its test keeps, in blocks of bounded size.
    """

    def __init__(self, corners: Float64[Tensor, "f 3 3"]) -> None:
        edges = (corners.roll(-1, 1) - corners)[:, :2]
        area = float(torch.linalg.vector_norm(torch.linalg.cross(edges[:, 0], edges[:, 1]), dim=1).sum()) / 2
        span = float((corners.amax((0, 1)) - corners.amin((0, 1))).max())
        count = max(len(corners), 2000)
        pieces, self.face = cut(corners, max(4 * math.sqrt(area / count), span / 200), 2 * count)
        self.centers: Float64[Tensor, "m 3"] = pieces.mean(1)
        slack = _ROUNDED_MIDDLES * float(corners.abs().max())
        order, fans = _clustered(self.centers)
        # Places without a piece hold an empty box, which no test keeps.
        empty = (order < 0)[:, None]
        low = (pieces.amin(1) - slack)[order].masked_fill(empty, math.inf)
        high = (pieces.amax(1) + slack)[order].masked_fill(empty, -math.inf)
        self._piece: Int64[Tensor, " p"] = self.face[order]
        self._levels: list[Float64[Tensor, "nodes 2 3 fan"]] = []
        for fan in fans:
            low, high = low.unflatten(0, (-1, fan)), high.unflatten(0, (-1, fan))
            self._levels.insert(0, torch.stack([low, high], 1).transpose(2, 3).contiguous())
            low, high = low.amin(1), high.amax(1)

    def search(self, count: int, keeps: Keeps) -> Iterator[tuple[Int64[Tensor, " k"], Int64[Tensor, " k"]]]:
        """Pairs of points and faces in whose boxes a test keeps the point; a face may come once for each of its pieces.

        The test is asked anew at each box, so that what it learned from earlier pairs counts.
        """
        for first in range(0, count, _AT_ONCE):
            points = torch.arange(first, min(first + _AT_ONCE, count))
            waiting = [(0, points, torch.zeros_like(points))]
            while waiting:
                level, points, nodes = waiting.pop()
                boxes = self._levels[level].index_select(0, nodes)
                pair, child = keeps(points, boxes[:, 0], boxes[:, 1]).nonzero(as_tuple=True)
                points, nodes = points[pair], nodes[pair] * boxes.shape[3] + child
                if level + 1 == len(self._levels):
                    if len(points):
                        yield points, self._piece[nodes]
                else:
                    waiting += [
                        (level + 1, *parts) for parts in zip(points.split(_AT_ONCE), nodes.split(_AT_ONCE), strict=True)
                    ]


def _clustered(centers: Float64[Tensor, "m 3"]) -> tuple[Int64[Tensor, " p"], list[int]]:
    """Pieces in an order whose blocks are near each other, -1 in places without one; and how many boxes each box holds,
    from the smallest ones up.

    Groups are halved along their longest side until they have at most `_FAN` pieces.
    """
    halvings = max(0, math.ceil(math.log2(len(centers) / _FAN)))
    group = torch.zeros(len(centers), dtype=torch.int64)
    for depth in range(halvings):
        order, rank, size = _ranked(centers, group, 2**depth)
        group = group.scatter(0, order, 2 * group[order] + (rank >= (size[group[order]] + 1) // 2))
    order, rank, size = _ranked(centers, group, 2**halvings)
    most = int(size.max())
    places = torch.full((2**halvings * most,), -1)
    places[group[order] * most + rank] = order
    fans = [_FAN] * (halvings // 3) + ([2 ** (halvings % 3)] if halvings % 3 else [])
    return places, [most, *fans]


def _ranked(
    centers: Float64[Tensor, "m 3"], group: Int64[Tensor, " m"], groups: int
) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"], Int64[Tensor, " g"]]:
    """Pieces in the order of their groups and along the longest side of each, their ranks there, sizes of groups."""
    index = group[:, None].expand(-1, 3)
    low = torch.full((groups, 3), math.inf, dtype=torch.float64).scatter_reduce(0, index, centers, "amin")
    high = torch.full((groups, 3), -math.inf, dtype=torch.float64).scatter_reduce(0, index, centers, "amax")
    along = centers.gather(1, (high - low).argmax(1)[group][:, None])[:, 0]
    order = torch.from_numpy(np.lexsort((along.numpy(), group.numpy())))
    size = torch.bincount(group, minlength=groups)
    return order, torch.arange(len(centers)) - (size.cumsum(0) - size)[group[order]], size
