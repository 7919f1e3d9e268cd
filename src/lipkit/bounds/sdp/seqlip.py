"""SeqLip: a feed-forward network bounded by pairs of neighbouring layers."""

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds._base import Method
from lipkit.bounds.sdp.dense_network import Block, Slopes, Whole, chain_of, dominating_factor, read
from lipkit.bounds.sdp.diagonal_maximum import Alignment, Exhaustive, Maximum, Pair
from lipkit.errors import ArgumentError
from lipkit.norms import SVD
from lipkit.regions import Region
from lipkit.rounding.float64 import norm_up, product_error
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_32, ULP
from lipkit.trace import Network

# Covers the float64 operations on one layer's numbers.
_UP = 1 + 1e-13


@final
@dataclass(frozen=True)
class SeqLip(Method):
    """Bound of a feed-forward network that lets every activation choose its slopes against its two neighbours only:

        Lip <= prod_l max over D_l of || R_(l+1) D_l L_l ||,   A_l = L_l R_l = (U S^(1/2)) (S^(1/2) V*),

    the first and the last layer undivided, D_l diagonal with entries in the slopes of layer l, of any sign. The maximum
    of a layer of up to `exhaustive` neurons is found among all its corners, of wider ones by `beyond`.

    Guarantee: UPPER with `Alignment` (the factorisation need not be exact: what is missing is bounded and added),
    ESTIMATE as soon as a layer is left to `Greedy`. Not differentiable: the value carries no gradient. Nodes without
    slopes of their own cut the network, linear ones are merged with their layers.
    Cost: 2^n small norms for n neurons, or two singular value decompositions a layer.
    Reference: Virmaux and Scaman 2018; slopes other than [0, 1] and all rounding are ours.
    """

    exhaustive: int = 12
    beyond: Maximum = field(default_factory=Alignment)

    def __post_init__(self) -> None:
        if not 0 <= self.exhaustive <= 20:
            raise ArgumentError(f"SeqLip.exhaustive must lie in 0..20 neurons, got {self.exhaustive}.")

    def __str__(self) -> str:
        return f"SeqLip, all corners up to {self.exhaustive} neurons, beyond by {self.beyond}"

    def _bound(self, network: Network, region: Region) -> Bound:
        dense, device = read(network), network.device
        if not dense.connected:
            return Bound(torch.full((), -math.inf, dtype=torch.float64, device=device), Kind.UPPER, self, region=region)
        logs, kind = [dense.units[dense.sink] * math.log(2)], Kind.UPPER
        for blocks, nodes in _segments(*chain_of(dense, self)):
            found, what = self._segment(blocks, nodes)
            logs, kind = [*logs, found], kind if what is Kind.UPPER else Kind.ESTIMATE
        return Bound(torch.tensor(_sum_up(logs), dtype=torch.float64, device=device), kind, self, region=region)

    def _segment(self, blocks: list[Block], nodes: list[Slopes]) -> tuple[float, Kind]:
        """log of the bound of A_m D_(m-1) ... D_1 A_1, and what it proves."""
        norms = [_norm(block.matrix) for block in blocks]
        if not nodes:
            return _log(norms[0] + blocks[0].error), Kind.UPPER
        halves = [_divide(block, first=i == 0, last=i == len(nodes)) for i, block in enumerate(blocks)]
        kind, logs, steep = Kind.UPPER, list[float](), list[float]()
        for i, node in enumerate(nodes):
            low, high = node.center - node.radius, node.center + node.radius
            size = torch.maximum(low.abs(), high.abs()) * (1 + ROUNDINGS_8)
            unit = torch.where(size > 0, size, 1.0)
            ends = [(end / unit + side * ROUNDINGS_8).clamp(-1, 1) for end, side in ((low, -1.0), (high, 1.0))]
            inner, outer = size[:, None] * halves[i].left, halves[i + 1].right
            pair = Pair(outer, inner, ends[0], ends[1], inner_whole=i == 0, outer_whole=i + 1 == len(nodes))
            maximum = Exhaustive(self.exhaustive) if len(size) <= self.exhaustive else self.beyond
            value, what = maximum(pair)
            kind = kind if what is Kind.UPPER else Kind.ESTIMATE
            logs, steep = [*logs, _log(value)], [*steep, _log(float(size.max()))]
        # What the halves miss: prod (n + e) - prod n, all other factors bounded by their norms.
        sizes = [_log(n + half.error) for n, half in zip(norms, halves, strict=True)]
        shares = [math.log1p(half.error / n) for n, half in zip(norms, halves, strict=True) if n > 0]
        share = math.expm1(math.fsum(shares)) if all(norms) else 1.0
        extra = _sum_up([_log(share * _UP), *sizes, *steep])
        main = _sum_up(logs)
        top = max(main, extra)
        if top == -math.inf:
            return top, kind
        return top + math.log(math.exp(main - top) + math.exp(extra - top)) + ROUNDINGS_32, kind


@final
@dataclass(frozen=True, eq=False)
class _Halves:
    """A within `error` of left @ right, in the spectral norm; at the ends of a chain the half that nobody reads is
    empty."""

    left: Float64[Tensor, "rows left"]
    right: Float64[Tensor, "right cols"]
    error: float


def _divide(block: Block, first: bool, last: bool) -> _Halves:
    rows, cols = block.matrix.shape
    # At the ends only A A* or A* A matters, so that the side that nobody sees may be narrowed.
    if first:
        narrow = cols > rows
        left = dominating_factor(block.matrix, block.error) if narrow else block.matrix
        return _Halves(left, left[:0], (0.0 if narrow else block.error) + ULP * float(norm_up(left, 2)))
    if last:
        narrow = rows > cols
        right = dominating_factor(block.matrix.mT, block.error).mT if narrow else block.matrix
        return _Halves(right[:, :0], right, 0.0 if narrow else block.error)
    u, s, vh = torch.linalg.svd(block.matrix, full_matrices=False)
    left, right = u * s.sqrt(), s.sqrt()[:, None] * vh
    size = float(norm_up(left, 2) * norm_up(right, 2))
    missing = float(norm_up(block.matrix - left @ right, 2)) + ULP * float(norm_up(block.matrix, 2))
    # The last term is the rounding of the left half when it is multiplied by the slopes.
    return _Halves(left, right, (missing + (product_error(len(s), torch.float64) + ULP) * size + block.error) * _UP)


def _segments(blocks: list[Block], nodes: list[Slopes | Whole]) -> list[tuple[list[Block], list[Slopes]]]:
    """Cut at nodes without slopes, whose constant becomes a block of its own; linear nodes merged into one matrix."""
    done: list[tuple[list[Block], list[Slopes]]] = []
    matrices, slopes = [blocks[0]], list[Slopes]()
    for node, block in zip(nodes, blocks[1:], strict=True):
        if isinstance(node, Whole):
            done.append((matrices, slopes))
            parts = [part for part in (node.center, node.scale) if part is not None]
            constant = sum(_norm(part.matrix) + part.error for part in parts) * _UP
            done.append(([Block(torch.full((1, 1), constant, dtype=torch.float64), 0.0, constant)], []))
            matrices, slopes = [block], []
        elif bool((node.radius == 0).all()):
            matrices[-1] = _merge(block, node, matrices[-1])
        else:
            matrices.append(block)
            slopes.append(node)
    return [*done, (matrices, slopes)]


def _merge(after: Block, node: Slopes, before: Block) -> Block:
    """after diag(center) before."""
    steep = float(node.center.abs().max())
    sizes = [float(norm_up(block.matrix, 2)) for block in (after, before)]
    rounding = product_error(len(node.center) + 2, torch.float64) * sizes[0] * sizes[1]
    error = (rounding + after.error * (sizes[1] + before.error) + sizes[0] * before.error) * steep * _UP
    matrix = after.matrix @ (node.center[:, None] * before.matrix)
    return Block(matrix, error, float(norm_up(matrix, 2)))


def _norm(matrix: Tensor) -> float:
    """The spectral norm, never below."""
    return float(SVD().enclose(matrix[None, None]).log_upper.exp()) * _UP


def _sum_up(logs: list[float]) -> float:
    """The sum, rounded up; each logarithm is within one unit in its last place."""
    if -math.inf in logs:
        return -math.inf
    return math.fsum(logs) + ROUNDINGS_8 * math.fsum(map(abs, logs)) + ROUNDINGS_32


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
