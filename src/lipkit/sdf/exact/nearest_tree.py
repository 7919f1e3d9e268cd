"""The nearest of many points in few dimensions, by a tree."""

from typing import Final, final

import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.float64 import gamma
from lipkit.sdf.exact.lengths import length_error, lengths
from lipkit.sdf.exact.nearest import Neighbors, Search

_ENTRIES: Final = 2**21


@final
class Tree(Search):
    """scipy's k-d tree, then distances from differences.

    A cell is left out if its computed squared distance exceeds that of the neighbours found so far. It is a sum of
    terms >= 0 that grows on the way down, so it is off by 4 roundings a level, relative to itself.

    Cost: O(log n) a query, more with every dimension.
    """

    def __init__(self, points: Float64[Tensor, "n d"]) -> None:
        self.points = points
        self._tree = scipy.spatial.KDTree(points.numpy())
        self._depth = _depth(self._tree)

    def __call__(self, queries: Float64[Tensor, "n d"], count: int) -> Neighbors:
        _, found = self._tree.query(queries.numpy(), k=count, workers=torch.get_num_threads())
        # Where squares overflow nothing is found; the distance is infinite then, whichever point is taken.
        index = torch.as_tensor(found).view(len(queries), count).clamp(max=len(self.points) - 1)
        rows = max(1, _ENTRIES // (count * queries.shape[1]))
        pairs = zip(queries.split(rows), index.split(rows), strict=True)
        distance, order = torch.cat([lengths(q[:, None] - self.points[i]) for q, i in pairs]).sort(1)
        error = 2 * length_error(queries.shape[1], distance) + gamma(4 * self._depth + 16) * distance
        return Neighbors(index.gather(1, order), distance, error)


def _depth(tree: "scipy.spatial.KDTree") -> int:
    deepest, level = 0, [tree.tree]
    while level:
        deepest += 1
        level = [
            child
            for node in level
            if isinstance(node, scipy.spatial.KDTree.innernode)
            for child in (node.less, node.greater)
        ]
    return deepest
