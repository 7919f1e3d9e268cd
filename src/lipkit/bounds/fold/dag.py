"""The fold over a network: the constant of every value, from the constants of the values before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric
from lipkit.bounds._base import Method
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.row import Term, fold_row
from lipkit.errors import ArgumentError
from lipkit.norms import Auto, Norm
from lipkit.regions import Region
from lipkit.rounding.logarithm import log_product
from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.trace import Network
from lipkit.trace.rewrites.fuse import Cut, EveryOp, Junctions, Nowhere, fuse

# Up to this many blocks a network is fused throughout; beyond, junctions stay cut.
_MANY = 96


@final
@dataclass(frozen=True, eq=False)
class Fold:
    """The fold of one network: its blocks' norms, and log of the constant of z_k and y_k with respect to the input.

    `into[k]` belongs to z_k for k = 1..K+1, `out[j]` to y_j for j = 0..K.
    """

    network: Network
    norms: dict[tuple[int, int], Bound]
    extra: tuple[Bound, ...]
    into: dict[int, Float64[Tensor, ""]]
    out: dict[int, Float64[Tensor, ""]]

    @property
    def log_value(self) -> Float64[Tensor, ""]:
        """log of the constant of the whole network."""
        return self.into[self.network.sink]


@final
@dataclass(frozen=True)
class DAG(Method):
    """Constants forward through any directed acyclic network, block by block:

        L_0 = 1,   L_k = Lip(phi_k) min{ p-sum over disjoint groups of sum_j ||A_kj|| L_j ; ||[A_k1 ... A_kJ]|| |L|_p }.

    Linear regions are fused first, according to `cut`; None fuses throughout while that leaves at most 96 blocks, and
    cuts at junctions beyond. Where values are joined, the unfused fold may be the smaller one, and is taken then.
    At a cut vertex the fold factorises by itself, so no articulation points are needed.

    Guarantee: UPPER; failures of randomised norms add up. Differentiable in the weights. Cost: one norm a block.
    References: Virmaux and Scaman 2018 for sequential nets; Luo et al. 2025 for DAGs with plain sums; the minimum over
    the three forms is ours.
    """

    norm: Norm = Auto()
    cut: Cut | None = None
    metric: Metric = L2

    def __str__(self) -> str:
        return f"fold over the network, {self.cut or 'fused'}"

    def fold(self, network: Network) -> Fold:
        """The fold itself, for tables of what each block contributes."""
        return fold_network(self.fused(network), Meter(self.metric, self.norm), joined=True)

    def fused(self, network: Network) -> Network:
        """The network as this method sees it."""
        if self.cut is not None:
            return fuse(network, self.cut)
        whole = fuse(network, Nowhere())
        return whole if len(whole.blocks) <= _MANY else fuse(network, Junctions())

    def _bound(self, network: Network, region: Region) -> Bound:
        found = as_bound(self.fold(network), self, self.metric, region)
        # Only a concatenation lets the unfused fold win: elsewhere fused norms are never larger.
        if isinstance(self.cut, EveryOp) or not joins(network):
            return found
        plain = as_bound(fold_network(network, Meter(self.metric, self.norm), joined=True), self, self.metric, region)
        return found.best(plain)


@final
@dataclass(frozen=True)
class Product(Method):
    """The classical bound: every operation by itself, products along paths, sums over branches, p-sums of joined parts.

        L(f_D o ... o f_1) <= prod_d L(f_d)

    Guarantee: UPPER, usually very loose. Differentiable in the weights. Cost: one norm an operation.
    References: Szegedy et al. 2014; Virmaux and Scaman 2018 (AutoLip).
    """

    norm: Norm = Auto()
    metric: Metric = L2

    def __str__(self) -> str:
        return "product of the norms of all operations"

    def _bound(self, network: Network, region: Region) -> Bound:
        fold = fold_network(fuse(network, EveryOp()), Meter(self.metric, self.norm), joined=False)
        return as_bound(fold, self, self.metric, region)


def fold_network(network: Network, meter: Meter, joined: bool) -> Fold:
    """L_k for every k, in one pass; `joined` allows the form that measures a whole row at once."""
    network.require_constants(meter.p)
    places = sorted(network.blocks)
    found = meter.many([network.blocks[at] for at in places], [j == 0 for _, j in places])
    norms = dict(zip(places, found, strict=True))
    out = {0: torch.zeros((), dtype=torch.float64)}
    into: dict[int, Tensor] = {}
    extra: list[Bound] = []
    for k, row in network.rows().items():
        terms = [Term(op, norms[k, j], out[j]) for j, op in row.items()]
        # A row that mixes the input in another norm than the rest cannot be measured as one operator.
        whole = joined and (meter.metric.p_in == meter.p or 0 not in row)
        folded_row = fold_row(terms, meter.p, (lambda op: meter.many([op], [False])[0]) if whole else None)
        extra += folded_row.extra
        into[k] = folded_row.log_constant
        if k < network.sink:
            constant = network.nodes[k - 1].log_constant(meter.p).cpu()
            out[k] = log_product(into[k], constant, 1.0)
    return Fold(network, norms, tuple(extra), into, out)


def as_bound(fold: Fold, method: Method, metric: Metric, region: Region) -> Bound:
    """The bound a fold proves, with the norms of its blocks as parts."""
    parts = (*(fold.norms[at] for at in sorted(fold.norms)), *fold.extra)
    return Bound(fold.log_value, Kind.UPPER, method, metric, region, failure=failures(parts), parts=parts)


def failures(parts: Sequence[Bound]) -> float:
    """The probability that any of the parts fails, at most."""
    total = math.fsum(part.failure for part in parts) * (1 + ROUNDINGS_8192)
    if total >= 1:
        raise ArgumentError(
            f"The failure probabilities of {len(parts)} norms add up to {total:g}; ask for smaller ones."
        )
    return total


def joins(network: Network) -> bool:
    """Whether some row puts values side by side, through blocks that write to a part of it only."""
    return any(len(row) > 1 and any(op.in_size < op.out_size for op in row.values()) for row in network.rows().values())
