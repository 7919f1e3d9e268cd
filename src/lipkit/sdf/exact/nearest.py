"""The nearest of many points, with a proof that none is missed beyond a stated error."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.rounding.float64 import gamma
from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.sdf.exact.lengths import length_error, lengths

# A block of products is at most this large (16 MB), and so is a block of differences.
_ENTRIES: Final = 2**21
# Points at once, a multiple of the group.
_COLUMNS: Final = 2**13
# Of each group of points the smallest product is found first, which costs one pass without comparisons of indices.
_GROUP: Final = 16
# Candidates beyond the neighbours that are asked for: the next one must be farther than these by more than rounding.
_SPARE: Final = 3
# What squares below the smallest normal number lose.
_TINY = 2.0**-1000


@final
@dataclass(frozen=True, eq=False)
class Neighbors:
    """The nearest points of each query, ascending; each true distance of that rank lies within its error."""

    index: Int64[Tensor, "n k"]
    distance: Float64[Tensor, "n k"]
    error: Float64[Tensor, "n k"]


class Search(ABC):
    """How nearest points are found."""

    @abstractmethod
    def __call__(self, queries: Float64[Tensor, "n d"], count: int) -> Neighbors:
        """The `count` nearest points of each query."""


@final
class Products(Search):
    """Candidates from |p|^2/2 - <q, p> by matrix products in float64, then their distances from differences.

    With y = q - c, z = p - c for the mean c, squares are computed within E = gamma(2 d + 64) (|y| + max |z|)^2.
    A point that is no candidate is therefore at least (t - E)^(1/2) away, t being the largest square of a candidate.
    Where that does not prove the neighbours to 1e-12 of their distance, all distances are computed from differences.

    Cost: n d multiplications a query, blocks of 16 MB.
    """

    def __init__(self, points: Float64[Tensor, "n d"]) -> None:
        self.points = points
        self._center = points.mean(0)
        shifted = points - self._center
        squares = shifted.square().sum(1)
        if not bool(torch.isfinite(squares).all()):
            raise NonFiniteError("Some points are too far out for their squares; scale the data to less than 1e150.")
        self._reach = float(squares.max().sqrt())
        # Groups are full: what is added has an infinite distance.
        missing = -len(points) % _GROUP
        self._shifted = torch.cat([shifted, shifted.new_zeros(missing, points.shape[1])])
        self._halves = torch.cat([squares / 2, squares.new_full((missing,), torch.inf)])

    def __call__(self, queries: Float64[Tensor, "n d"], count: int) -> Neighbors:
        wide = min(count + _SPARE, len(self.points))
        rows = max(1, _ENTRIES // max(min(_COLUMNS, len(self.points)), wide * queries.shape[1]))
        found = [self._block(block, count, wide) for block in queries.split(rows)]
        return Neighbors(*(torch.cat(part) for part in zip(*found, strict=True)))

    def _block(self, queries: Tensor, count: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
        shifted = queries - self._center
        best, index = self._candidates(shifted, wide)
        index, distance = _sorted(queries, self.points, index)
        error = 2 * length_error(queries.shape[1], distance)
        if wide < len(self.points):
            slack = gamma(2 * queries.shape[1] + 64) * (lengths(shifted) + self._reach).square() + _TINY
            away = (2 * best.amax(1) + shifted.square().sum(1) - slack).clamp(min=0).sqrt()
            missed = (distance - away[:, None]).clamp(min=0)
            error = error + missed
            # False for NaN too, which comes from squares that overflow.
            unsure = ~(missed[:, count - 1] <= ROUNDINGS_8192 * distance[:, count - 1])
            if bool(unsure.any()):
                index[unsure, :count], distance[unsure, :count], error[unsure, :count] = self._by_differences(
                    queries[unsure], count
                )
        return index[:, :count], distance[:, :count], error[:, :count]

    def _candidates(self, shifted: Tensor, wide: int) -> tuple[Tensor, Tensor]:
        best, index = shifted.new_empty(len(shifted), 0), shifted.new_empty(len(shifted), 0, dtype=torch.int64)
        for start in range(0, len(self._shifted), _COLUMNS):
            part = slice(start, start + _COLUMNS)
            halves = torch.addmm(self._halves[part], shifted, self._shifted[part].mT, alpha=-1)
            value, where = _smallest(halves, min(wide, halves.shape[1]))
            best, index = torch.cat([best, value], 1), torch.cat([index, where + start], 1)
        if best.shape[1] > wide:
            best, kept = best.topk(wide, dim=1, largest=False)
            index = index.gather(1, kept)
        return best, index.clamp(max=len(self.points) - 1)

    def _by_differences(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor]] = []
        rows = max(1, _ENTRIES // len(self.points))
        for block in queries.split(rows):
            every = torch.cdist(block, self.points, compute_mode="donot_use_mm_for_euclid_dist")
            found.append(_sorted(block, self.points, every.topk(count, dim=1, largest=False).indices))
        index, distance = (torch.cat(part) for part in zip(*found, strict=True))
        # The choice rests on lengths with the same error as those returned.
        return index, distance, 4 * length_error(queries.shape[1], distance)


def _smallest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest entries of each row, and where they are; rows are multiples of a group."""
    groups = values.shape[1] // _GROUP
    if groups < 4 * count:
        found = values.topk(count, dim=1, largest=False)
        return found.values, found.indices
    # The smallest entries lie in the groups with the smallest minima. A group is a column here, so that minima are
    # taken of whole rows at once.
    table = values.view(len(values), _GROUP, groups)
    chosen = table.amin(1).topk(count, dim=1, largest=False).indices
    inside = table.gather(2, chosen[:, None].expand(-1, _GROUP, -1)).flatten(1)
    found = inside.topk(count, dim=1, largest=False)
    row, group = found.indices // count, chosen.gather(1, found.indices % count)
    return found.values, row * groups + group


def _sorted(queries: Tensor, points: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    distance, order = lengths(queries[:, None] - points[index]).sort(1)
    return index.gather(1, order), distance
