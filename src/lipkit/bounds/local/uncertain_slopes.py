"""A network on a region as a linear map plus the few slopes that are not known there."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.jacobian_intervals import Slopes, Span, backward
from lipkit.bounds.local.measured_network import MeasuredNetwork
from lipkit.errors import TooLargeError
from lipkit.linops import Dense
from lipkit.norms import Auto
from lipkit.rounding.float64 import gamma, norm_up
from lipkit.rounding.slacks import ROUNDINGS_16, ROUNDINGS_512

# Entries of a batch of vectors that go through the network together.
_CHUNK_ENTRIES = 2**23
_ULPS = ROUNDINGS_16


@final
@dataclass(frozen=True, eq=False)
class Uncertain:
    """Every difference quotient of the network on the region is M = C + G D (I - N D)^-1 P with |D| <= spread.

    Nodes that are linear on the region are gone; D is diagonal and holds how far each remaining slope lies from the
    middle of its interval. N is strictly lower triangular in `blocks`, one slice for each node of the network. The
    matrices are spans: midpoints that are taken for the matrices, and widths that bound what rounding did to them.
    """

    c: Span
    g: Span
    n: Span
    p: Span
    spread: Float64[Tensor, " count"]
    blocks: tuple[slice, ...]

    def reached(self, on_z: Float64[Tensor, "count cols"]) -> Float64[Tensor, "count cols"]:
        """(I - |N| spread)^-1 on_z for on_z >= 0, rounded up: the most every |z_i| can become. Sums only."""
        largest = (self.n.mid.abs() + self.n.width) * self.spread * (1 + _ULPS)
        found = torch.zeros_like(on_z)
        slack = 1 + 2 * gamma(len(on_z) + 8)
        for at in self.blocks:
            found[at] = (on_z[at] + largest[at, : at.start] @ found[: at.start]) * slack
        return found

    def width(self) -> Float64[Tensor, "out in"]:
        """R with |M - C| <= R entry by entry, rounding of C included."""
        inside = self.reached(self.p.mid.abs() + self.p.width)
        outer = (self.g.mid.abs() + self.g.width) * self.spread
        return (outer @ inside + self.c.width) * (1 + 2 * gamma(len(inside) + 8))

    def lost(self) -> Float64[Tensor, ""]:
        """A bound of the Frobenius norm of M - M', where M' has the midpoints for its matrices, whatever D is."""
        largest, outer = self.p.mid.abs() + self.p.width, (self.g.mid.abs() + self.g.width) * self.spread
        inside = self.reached(largest)
        error = self.c.width + (self.g.width * self.spread) @ inside + outer @ self.reached(self.p.width)
        error = error + outer @ self.reached((self.n.width * self.spread) @ inside)
        return norm_up(error.flatten(), 1) * (1 + 8 * gamma(len(inside) + 16))

    def by_blocks(self) -> Float64[Tensor, ""]:
        """A bound of ||M||_2 from the norms of the blocks: each node's uncertain rest taken as one nonexpansive map.

        With S the spreads, z_k = P_k x + sum_j N_kj S_j v_j and |v_j|_2 <= |z_j|_2: a fold over the nodes.
        """
        root, norm = self.spread.sqrt(), Auto()
        left, right = root[:, None], root
        on_x = [norm(Dense(left[at] * self.p.mid[at])).value for at in self.blocks]
        inner = {
            (i, j): norm(Dense(left[a] * self.n.mid[a, b] * right[b])).value
            for i, a in enumerate(self.blocks)
            for j, b in enumerate(self.blocks[:i])
        }
        reach: list[Tensor] = []
        for i, direct in enumerate(on_x):
            reach.append(sum((inner[i, j] * reach[j] for j in range(i)), direct) * (1 + ROUNDINGS_512))
        ends = [norm(Dense(self.g.mid[:, at] * right[at])).value * reach[i] for i, at in enumerate(self.blocks)]
        return (sum(ends, norm(Dense(self.c.mid)).value) + self.lost()) * (1 + ROUNDINGS_512)


def uncertain(
    found: MeasuredNetwork, slopes: Slopes, limit: int, outputs: Float64[Tensor, "count *shape"] | None = None
) -> Uncertain:
    """The reduced form of a network of pointwise nodes with these slope intervals.

    Cost: three adjoints of the network for every uncertain slope and every output, in batches. Refuses more than
    `limit` uncertain slopes.

    Args:
        found: The network.
        slopes: The slope intervals on the region.
        limit: The most slopes that may be uncertain.
        outputs: Combinations of the outputs to be bounded instead of each of them, such as differences of two.
    """
    network = found.network
    where = {k: (alpha < beta).flatten().nonzero().flatten() for k, (alpha, beta) in slopes.items()}
    where = {k: at for k, at in where.items() if len(at)}
    count = sum(map(len, where.values()))
    if count > limit:
        raise TooLargeError(
            f"{count} slopes are uncertain on the region, the limit is {limit}; give a smaller region or tighter "
            "slopes, raise the limit, or use Local."
        )
    middles: dict[int, tuple[Tensor, Tensor]] = {}
    spreads = [torch.zeros(0, dtype=torch.float64, device=found.device)]
    for k, (alpha, beta) in slopes.items():
        mid = torch.where(alpha < beta, alpha / 2 + beta / 2, alpha)
        middles[k] = (mid, mid)
        if k in where:
            spreads.append((torch.maximum(beta - mid, mid - alpha) * (1 + _ULPS)).flatten()[where[k]])
    starts = [0, *torch.tensor([len(at) for at in where.values()], dtype=torch.int64).cumsum(0).tolist()]
    blocks = tuple(slice(a, b) for a, b in pairwise(starts))
    rows = [_rows(found, middles, k, _units(found, k, at), where) for k, at in where.items()]
    every = torch.arange(math.prod(network.target), device=found.device)
    ends = _units(found, network.sink, every) if outputs is None else iter([outputs])
    last_c, last_g = _rows(found, middles, network.sink, ends, where)
    nothing = torch.zeros(0, math.prod(network.source), dtype=torch.float64, device=found.device)
    empty = nothing.new_zeros((0, count))
    return Uncertain(
        last_c,
        last_g,
        _join([n for _, n in rows] or [Span(empty, empty)]),
        _join([p for p, _ in rows] or [Span(nothing, nothing)]),
        torch.cat(spreads),
        blocks,
    )


def _units(found: MeasuredNetwork, k: int, rows: Tensor) -> Iterator[Tensor]:
    """Unit vectors for the entries `rows` of z_k, in batches small enough for memory."""
    shape = found.network.shape_into(k)
    widest = max(math.prod(found.network.shape_into(j)) for j in range(1, k + 1))
    step = max(1, _CHUNK_ENTRIES // max(widest, math.prod(found.network.source)))
    for some in rows.split(step):
        units = torch.zeros(len(some), math.prod(shape), dtype=torch.float64, device=found.device)
        units[torch.arange(len(some)), some] = 1
        yield units.reshape(-1, *shape)


def _rows(
    found: MeasuredNetwork, middles: Slopes, k: int, starts: Iterator[Tensor], where: dict[int, Tensor]
) -> tuple[Span, Span]:
    """Derivatives of <start, z_k> with all slopes at their middles: by the input, and by every y_j that an uncertain
    slope belongs to."""
    by_input: list[Span] = []
    by_node: list[Span] = []
    for start in starts:
        at_input, on_y = backward(found, middles, k, start)
        by_input.append(Span(at_input.mid.flatten(1), at_input.width.flatten(1)))
        columns = [_select(on_y.get(j), at, start) for j, at in where.items()]
        empty = start.new_zeros((len(start), 0))
        by_node.append(_join([Span(empty, empty), *columns], dim=1))
    return _join(by_input), _join(by_node)


def _select(span: Span | None, at: Tensor, like: Tensor) -> Span:
    if span is None:
        nothing = like.new_zeros((len(like), len(at)))
        return Span(nothing, nothing)
    return Span(span.mid.flatten(1)[:, at], span.width.flatten(1)[:, at])


def _join(spans: list[Span], dim: int = 0) -> Span:
    join: Callable[[list[Tensor]], Tensor] = lambda parts: torch.cat(parts, dim)  # noqa: E731
    return Span(join([span.mid for span in spans]), join([span.width for span in spans]))
