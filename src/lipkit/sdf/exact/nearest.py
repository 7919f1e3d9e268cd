"""The nearest of many points, with a proof that none is missed beyond a stated error."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.rounding.slacks import ROUNDINGS_8192, UNIT_OF
from lipkit.sdf.exact.lengths import length_error, lengths, underflow

# A block of products is at most this large (16 MB), and so is a block of differences.
_ENTRIES: Final = 2**21
# Points at once, a multiple of the group.
_COLUMNS: Final = 2**14
# Of each group of points the smallest product is found first, which costs one pass without comparisons of indices.
_GROUP: Final = 16
# Candidates beyond the neighbours that are asked for: the next one must be farther than these by more than rounding.
_SPARE: Final = 3
# What squares below the smallest normal number lose.
_TINY = 2.0**-1000
# How far out a query may be, in units of the farthest point, so that no product overflows.
_FAR: Final = {torch.float32: 2.0**60, torch.float64: 2.0**960}
# More than any product.
_FULL: Final = {torch.float32: 2.0**100, torch.float64: 2.0**1000}


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
    """Candidates from |z|^2/2 - <y, z> by matrix products, then their distances from differences.

    With y = q - c, z = p - c for the mean c, squares are computed within E = gamma(2 d + 64) (|y| + max |z|)^2. A point
    that is no candidate is therefore at least (t - E)^(1/2) away, t being the largest square of a candidate. On a CPU
    products are in float32 first. Where they do not prove the neighbours to 1e-12 of their distance, they are in
    float64, and where those do not either, all distances are computed from differences.

    Cost: n d multiplications a query, blocks of 16 MB.
    """

    def __init__(self, points: Float64[Tensor, "n d"]) -> None:
        self.points = points
        self._center = points.mean(0)
        shifted = points - self._center
        self._reach = float(lengths(shifted).max()) + underflow(points.shape[1])
        if not self._reach * self._reach < math.inf:
            raise NonFiniteError("Some points are too far out for their squares; scale the data to less than 1e150.")
        # The power of two in which no coordinate exceeds one, so that float32 has room for products.
        self._unit = 2.0 ** math.frexp(self._reach)[1]
        shifted = shifted / self._unit
        # One more column, so that the product with (y, 1) is |z|^2/2 - <y, z>.
        table = torch.cat([-shifted, shifted.square().sum(1, keepdim=True) / 2], 1)
        types = (torch.float32, torch.float64) if table.device.type == "cpu" else (torch.float64,)
        self._tables = [_fill(table.to(one)) for one in types]

    def __call__(self, queries: Float64[Tensor, "n d"], count: int) -> Neighbors:
        wide = min(count + _SPARE, len(self.points))
        rows = max(1, _ENTRIES // max(min(_COLUMNS, len(self.points)), wide * queries.shape[1]))
        found = [self._block(block, count, wide) for block in queries.split(rows)]
        return Neighbors(*(torch.cat(part) for part in zip(*found, strict=True)))

    def _block(self, queries: Tensor, count: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
        index, distance, error, sure = self._by_products(self._tables[0], queries, count, wide)
        for table in (*self._tables[1:], None):
            if bool(sure.all()):
                break
            rest = (~sure).nonzero().flatten()
            if table is None:
                index[rest], distance[rest], error[rest] = self._by_differences(queries[rest], count)
            else:
                index[rest], distance[rest], error[rest], sure[rest] = self._by_products(
                    table, queries[rest], count, wide
                )
        return index, distance, error

    def _by_products(self, table: Tensor, queries: Tensor, count: int, wide: int) -> tuple[Tensor, ...]:
        shifted = queries - self._center
        size = lengths(shifted)
        # Farther out products overflow, so such queries are left to the next way.
        near = size <= _FAR[table.dtype] * self._unit
        best, index = _candidates(table, torch.where(near[:, None], shifted / self._unit, 0.0), wide)
        index, distance = _sorted(queries, self.points, index.clamp(max=len(self.points) - 1))
        error = 2 * length_error(queries.shape[1], distance)
        if wide == len(self.points):
            return index[:, :count], distance[:, :count], error[:, :count], torch.ones_like(size, dtype=torch.bool)
        slack = _gamma(2 * queries.shape[1] + 64, table.dtype) * (size + self._reach).square() + _TINY
        largest = 2 * best.amax(1).double() * self._unit**2
        away = (largest + size.square() - slack).clamp(min=0).sqrt()
        missed = (distance - away[:, None]).clamp(min=0)
        # False for NaN too, which comes from squares that overflow.
        sure = near & (missed[:, count - 1] <= ROUNDINGS_8192 * distance[:, count - 1])
        return index[:, :count], distance[:, :count], (error + missed)[:, :count], sure

    def _by_differences(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor]] = []
        rows = max(1, _ENTRIES // len(self.points))
        for block in queries.split(rows):
            every = torch.cdist(block, self.points, compute_mode="donot_use_mm_for_euclid_dist")
            found.append(_sorted(block, self.points, every.topk(count, dim=1, largest=False).indices))
        index, distance = (torch.cat(part) for part in zip(*found, strict=True))
        # The choice rests on lengths with the same error as those returned.
        return index, distance, 4 * length_error(queries.shape[1], distance)


def _gamma(depth: int, dtype: torch.dtype) -> float:
    """n u / (1 - n u) for the roundings of a number type; infinite where it proves nothing."""
    share = (depth + 1) * UNIT_OF[dtype]
    return share / (1 - share) if share < 1 / 2 else math.inf


def _fill(table: Tensor) -> Tensor:
    """A table with full groups: what is added is farther than any point."""
    added = torch.zeros(-len(table) % _GROUP, table.shape[1]).to(table)
    added[:, -1] = _FULL[table.dtype]
    return torch.cat([table, added])


def _candidates(table: Tensor, shifted: Tensor, wide: int) -> tuple[Tensor, Tensor]:
    """The `wide` smallest products of each query with the rows of a table, and where they are."""
    rows = torch.cat([shifted, shifted.new_ones(len(shifted), 1)], 1).to(table)
    best, index = table.new_empty(len(rows), 0), torch.zeros(len(rows), 0, dtype=torch.int64, device=table.device)
    for start in range(0, len(table), _COLUMNS):
        value, where = _smallest(_product(rows, table[start : start + _COLUMNS]), wide)
        best, index = torch.cat([best, value], 1), torch.cat([index, where + start], 1)
    if best.shape[1] > wide:
        best, kept = best.topk(wide, dim=1, largest=False)
        index = index.gather(1, kept)
    return best, index


def _product(rows: Tensor, table: Tensor) -> Tensor:
    if table.dtype == torch.float64:
        return rows @ table.mT
    # By numpy: torch may be set to multiply float32 with fewer digits, which no bound covers.
    return torch.from_numpy(rows.numpy() @ table.numpy().T)


def _smallest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest entries of each row, and where they are; rows are multiples of a group."""
    count, groups = min(count, values.shape[1]), values.shape[1] // _GROUP
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
