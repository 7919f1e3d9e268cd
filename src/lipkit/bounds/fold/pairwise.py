"""Constants of the differences of outputs, z_a - z_b: what a certified radius needs."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._runtime import recording
from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.bounds._base import Snapshot
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import DAG, Fold, failures
from lipkit.bounds.fold.liplt import Expansion
from lipkit.errors import ShapeError
from lipkit.linops import LinearOperator, depth, magnitude
from lipkit.norms import Auto, Norm, dual_exponent
from lipkit.norms._base import check_operator
from lipkit.regions import Everywhere, Region
from lipkit.rounding.float64 import gamma, log_product, log_sum, log_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network
from lipkit.trace.rewrites.fuse import Junctions, fuse

# Entries of rows, or of their differences, computed at once; entries of rows kept; classes that are compared directly.
_CHUNK, _KEPT, _FEW = 2**25, 2**28, 64


class Pairwise(ABC):
    """A way to bound the constants of all differences z_a - z_b of a network's outputs."""

    @final
    def __call__(self, network: Network, region: Region = Everywhere()) -> Bound:
        """One constant for each pair: symmetric, zero on the diagonal, differentiable in the weights."""
        with recording() as draws:
            found = self._bound(network, region)
        return replace(found, draws=tuple(draws), subject=Snapshot(network))

    @abstractmethod
    def _bound(self, network: Network, region: Region) -> Bound:
        """The algorithm."""


@final
@dataclass(frozen=True)
class PairwiseDAG(Pairwise):
    """K_ab = sum_j ||(A_a - A_b)_j|| L_j, with the rows A of the last blocks and the constants L_j of `DAG`.

    Guarantee: UPPER. Cost: the fold, and one product of the last blocks with every unit vector.
    Reference: the last-layer trick of Tsuzuku et al. 2018, on any graph.
    """

    norm: Norm = Auto()
    metric: Metric = L2

    def __str__(self) -> str:
        return "norms of differences of rows of the last layer, after a fold"

    def _bound(self, network: Network, region: Region) -> Bound:
        fold: Fold = DAG(self.norm, metric=_inner(self.metric)).fold(network)
        sources = [
            (fold.network.blocks[fold.network.sink, j], fold.out[j]) for j in fold.network.row(fold.network.sink)
        ]
        used = [bound for (k, _), bound in sorted(fold.norms.items()) if k < fold.network.sink]
        return differences_of_rows(self, self.metric, fold.network, sources, (*used, *fold.extra), region)


@final
@dataclass(frozen=True)
class PairwiseLipLT(Pairwise):
    """K_ab = ||(P_a - P_b)_0|| + sum_j ||((P_a - P_b) R)_j|| m_j, with the linear maps P and constants m of `LipLT`.

    The last operators have one row for each class, so their norms are those of vectors: no iteration, all pairs at
    once. With a `window` as in `LipLT`.

    Guarantee: UPPER; failures of the inner norms add up. Cost: LipLT of everything before the outputs, and as many
    vector-Jacobian products of the linearised network as there are outputs, streamed.
    Reference: Fazlyab et al. 2023.
    """

    norm: Norm = Auto()
    window: int | None = None
    metric: Metric = L2
    negligible: float = 1e-3

    def __str__(self) -> str:
        return "LipLT for each pair of outputs"

    def _bound(self, network: Network, region: Region) -> Bound:
        run = Expansion(fuse(network, Junctions()), Meter(_inner(self.metric), self.norm), self.window, self.negligible)
        sink = run.network.sink
        sources: list[tuple[LinearOperator, Tensor]] = []
        for j, rest in run.sources(sink):
            op = run.paths.operator(sink, j, rest)
            if op is not None:
                sources.append((op, run.size((j, rest))))
        return differences_of_rows(self, self.metric, run.network, sources, tuple(run.norms), region)


def _inner(metric: Metric) -> Metric:
    """The metric of the values before the output: that of the input throughout, since the outputs are numbers."""
    return Metric(metric.p_in, metric.p_in)


def differences_of_rows(
    method: Pairwise,
    metric: Metric,
    network: Network,
    sources: list[tuple[LinearOperator, Float64[Tensor, ""]]],
    used: tuple[Bound, ...],
    region: Region,
) -> Bound:
    """K_ab = sum_j ||(A_a - A_b)_j||_q L_j for operators A_j into the outputs and logarithms of the constants L_j."""
    if len(network.target) != 1:
        raise ShapeError(
            f"Pairs of outputs need one axis of them, got outputs of shape {network.target}; flatten first."
        )
    classes = network.target[0]
    device = sources[0][0].device if sources else torch.device("cpu")
    total = torch.full((classes, classes), -math.inf, dtype=torch.float64, device=device)
    q = dual_exponent(metric.p_in)
    for op, log_constant in sources:
        logs = _differences(op.to(torch.float64), classes, q)
        total = log_sum(total, log_product(logs, log_constant.to(device), 1.0), 1.0)
    # Logarithms of one number at two places of a tensor may differ in the last digit.
    total = torch.maximum(total, total.mT)
    same = torch.eye(classes, dtype=torch.bool, device=device)
    total = total.masked_fill(same, -math.inf)
    return Bound(total, Kind.UPPER, method, metric, region, Scope.PAIR, failures(used), parts=used)


def _differences(op: LinearOperator, classes: int, q: float) -> Float64[Tensor, "classes classes"]:
    """log of the q-norms of all differences of two rows of an operator, rounded up past every rounding on the way."""
    check_operator(op)
    units = torch.eye(classes, dtype=torch.float64, device=op.device).reshape(classes, *op.out_shape)
    width = max(1, _CHUNK // max(op.in_size, op.out_size))
    starts = range(0, classes, width)

    def rows(start: int) -> Tensor:
        return op.adjoint(units[start : start + width]).flatten(1)

    # All rows at once if memory allows; otherwise each pair of chunks asks for them again.
    kept = {start: rows(start) for start in starts} if classes * op.in_size <= _KEPT else {}
    strips: list[Tensor] = []
    for first in starts:
        left = kept[first] if kept else rows(first)
        strips.append(torch.cat([_distances(left, kept[then] if kept else rows(then), q) for then in starts], dim=1))
    found = torch.cat(strips)
    known = magnitude(op)
    # Two rows, each off by the operator's error times the size of a unit vector; in l_q at most sqrt(n) times that.
    spread = 1.0 if q >= 2 else math.sqrt(op.in_size)
    largest = found.detach().max() if known.relative else found.new_zeros(())
    error = 2 * gamma(depth(op)) * spread * (known.absolute.to(found) + known.relative * largest)
    return log_up((found + found.mT) / 2 * (1 + ROUNDINGS_8) + error * (1 + 1e-9))


def _distances(a: Float64[Tensor, "m n"], b: Float64[Tensor, "k n"], q: float) -> Float64[Tensor, "m k"]:
    """||a_i - b_j||_q, rounded up. Many Euclidean ones come from inner products, with their cancellation added."""
    largest = torch.maximum(a.detach().abs().max(), b.detach().abs().max())
    # In units of the largest entry, a power of two, so that squares neither over- nor underflow.
    unit = torch.exp2(torch.frexp(largest).exponent.clamp(-1000, 1000).to(torch.float64))
    return _scaled_distances(a / unit, b / unit, q) * unit


def _scaled_distances(a: Tensor, b: Tensor, q: float) -> Tensor:
    n = a.shape[1]
    if q != 2 or max(len(a), len(b)) <= _FEW:
        step = max(1, _CHUNK // max(1, b.numel()))
        pieces = [
            torch.linalg.vector_norm(a[i : i + step, None] - b[None], ord=q, dim=-1) for i in range(0, len(a), step)
        ]
        return torch.cat(pieces) * (1 + gamma(n + 16))
    squares = a.square().sum(1)[:, None] + b.square().sum(1)[None]
    # |fl - exact| <= gamma_(n + 3) (||a||^2 + ||b||^2 + 2 |a| |b|) <= 2 gamma_(n + 3) (||a||^2 + ||b||^2).
    square = (squares - 2 * a @ b.mT).clamp(min=0) + 2 * gamma(n + 8) * squares.detach()
    safe = torch.where(square > 0, square, 1.0)
    return torch.where(square > 0, safe.sqrt() * (1 + gamma(4)), 0.0)
