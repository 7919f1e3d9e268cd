"""LipLT: nonlinearities as a mean slope plus a smaller rest, so that linear maps are composed before their norms."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._logarithm import log_product
from lipkit.bound import L2, Bound, Kind, Metric
from lipkit.bounds._base import Method
from lipkit.bounds._linearised import DensePaths, Paths, Pulled, SweepPaths
from lipkit.bounds._norms import Meter
from lipkit.bounds._refined import weighed, weights
from lipkit.bounds._row import Term, disjoint, fold_row
from lipkit.bounds.dag import DAG, failures, joins
from lipkit.errors import ArgumentError, MetricError
from lipkit.linops import LinearOperator
from lipkit.norms import Auto, Norm
from lipkit.regions import Region
from lipkit.trace import Network
from lipkit.trace.fuse import Junctions, fuse
from lipkit.trace.nodes import Pointwise

# Up to this many entries in all composed matrices together they are written out.
_DENSE = 2**24


@final
@dataclass(frozen=True)
class LipLT(Method):
    """Loop transformation on any directed acyclic network: with phi_j = C_j + R_j psi_j, psi_j nonexpansive,

        m_s = ||P_s0|| + sum_{j < s} ||P_sj R_j|| m_j,

    where P_sj is the linear map from value j to row s with all psi cut out, and m_s the constant of z_s. Nodes without
    a linear part (sorting, pooling, ...) have C = 0. Rows are folded as in `DAG`, so that m_s is never above its value
    there. With a `window` w, a sink looks back to the last cut vertex that is at least w nodes before it, which counts
    as opaque: O(K w) norms instead of O(K^2). A norm that is randomised is drawn afresh for every map.
    With `refine`, the term of a pointwise node is the smaller of the above and Lip(D_sj z_j), for diagonal D_sj with
    (P_sj R_j)*(P_sj R_j) <= D_sj^2, which holds because |psi_j(z) - psi_j(z')| <= |z - z'| entry by entry.

    Guarantee: UPPER, never above `DAG` beyond the slack of the norms; failures add up. Differentiable in the weights.
    Cost: K (K + 1)/2 norms of composed maps, as matrices while those have at most 2^24 entries together; K^3/3 with
    `refine`, which is only done for matrices.
    References: Fazlyab et al. 2023 for feed-forward and residual nets; on general graphs, and the window, ours.
    """

    norm: Norm = Auto()
    window: int | None = None
    metric: Metric = L2
    refine: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ArgumentError(f"LipLT.window must be at least 1, or None for no window, got {self.window}.")
        if self.refine and self.metric != L2:
            raise MetricError(f"LipLT.refine weighs squares, so it needs the metric {L2}, got {self.metric}.")

    def __str__(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        return f"LipLT{window}{', refined' if self.refine else ''}"

    def work(self, network: Network) -> int:
        """How many blocks one application of every map passes through: what the cost is proportional to.

        Matrices are formed once, so each counts as one block there.
        """
        fused = fuse(network, Junctions())
        starts = {s: window_start(fused, s, self.window) for s in range(1, fused.sink + 1)}
        if _entries(fused, starts) <= _DENSE:
            return sum(s - start for s, start in starts.items())
        pairs = [(s, j) for s, start in starts.items() for j in range(start, s)]
        return sum(sum(j <= i and k <= s for k, i in fused.blocks) for s, j in pairs)

    def _bound(self, network: Network, region: Region) -> Bound:
        run = Expansion(fuse(network, Junctions()), Meter(self.metric, self.norm), self.window, self.refine)
        log_value = run.into(run.network.sink)
        parts = tuple(run.norms)
        found = Bound(log_value, Kind.UPPER, self, self.metric, region, failure=failures(parts), parts=parts)
        # Where values are joined, a fold over other cuts may win; elsewhere it cannot.
        return found.best(DAG(self.norm, metric=self.metric)(network, region)) if joins(network) else found


@final
class Expansion:
    """One run of the recursion: the constants m_k found so far, and every norm that was used."""

    def __init__(self, network: Network, meter: Meter, window: int | None, refine: bool = False) -> None:
        network.require_constants(meter.p)
        # Once for all maps: every norm is taken in float64.
        network = network.to(torch.float64)
        self.network = network
        self.meter = meter
        self.window = window
        places = sorted(network.blocks)
        found = meter.many([network.blocks[at] for at in places], [j == 0 for _, j in places])
        self.direct = dict(zip(places, found, strict=True))
        self.norms: list[Bound] = list(found)
        pulled = {k: Pulled.of(node.split(meter.p), network.device) for k, node in enumerate(network.nodes, start=1)}
        sizes = {at: float(bound.value.detach()) for at, bound in self.direct.items()}
        starts = {s: window_start(network, s, window) for s in range(1, network.sink + 1)}
        self.paths: Paths = (DensePaths if _entries(network, starts) <= _DENSE else SweepPaths)(network, pulled, sizes)
        self._refine = refine and isinstance(self.paths, DensePaths)
        self._into: dict[int, Float64[Tensor, ""]] = {}

    def into(self, s: int) -> Float64[Tensor, ""]:
        """log m_s, the constant of z_s."""
        for k in range(1, s + 1):
            if k not in self._into:
                self._into[k] = self._constant(k)
        return self._into[s]

    def out(self, j: int) -> Float64[Tensor, ""]:
        """log of the constant of y_j, the nonlinearity included."""
        if j == 0:
            return torch.zeros((), dtype=torch.float64)
        return log_product(self.into(j), self.network.nodes[j - 1].log_constant(self.meter.p).cpu(), 1.0)

    def sources(self, s: int) -> list[tuple[int, bool]]:
        """What row s depends on: the opaque start of its window, then the rests in between, latest first."""
        start = window_start(self.network, s, self.window)
        inside = [j for j in range(start + 1, s) if self.paths.pulled[j].scale > 0]
        return [*((j, True) for j in reversed(inside)), (start, False)]

    def _constant(self, s: int) -> Float64[Tensor, ""]:
        row = self.network.row(s)
        terms = [Term(op, self.direct[s, j], self.out(j)) for j, op in row.items()]
        apart = len(row) > 1 and len(disjoint(terms)) > 1
        plain = fold_row(terms, self.meter.p, None, apart).log_constant
        if s < self.network.sink and self.paths.pulled[s].scale == 0 and self.window is None:
            return plain  # An identity: its constant is asked for by no later row.
        expanded: list[Term] = []
        for j, rest in self.sources(s):
            term = self._term(s, j, rest)
            expanded += [] if term is None else [term]
        return torch.minimum(plain, fold_row(expanded, self.meter.p, None, apart).log_constant)

    def _term(self, s: int, j: int, rest: bool) -> Term | None:
        op = self.paths.operator(s, j, rest)
        if op is None:
            return None
        norm = self._measured(s, j, rest)
        if norm is None:
            norm = self.meter.many([op], [j == 0])[0]
            self.norms.append(norm)
        self.paths.learn(s, j, rest, float(norm.value.detach()))
        limit = (
            self._limit(op, j) if rest and self._refine and isinstance(self.network.nodes[j - 1], Pointwise) else None
        )
        return Term(op, norm, self.into(j) if rest else self.out(j), limit)

    def _limit(self, op: LinearOperator, j: int) -> Float64[Tensor, ""]:
        """log Lip(D z_j) by the same recursion, for the better of two diagonals D with op* op <= D^2."""
        found: list[Tensor] = []
        for d in weights(op):
            terms: list[Term] = []
            for i, rest in self.sources(j):
                inner = self.paths.operator(j, i, rest)
                if inner is not None:
                    norm = self.meter.many([weighed(d, inner)], [i == 0])[0]
                    self.norms.append(norm)
                    terms.append(Term(inner, norm, self.into(i) if rest else self.out(i)))
            found.append(fold_row(terms, self.meter.p, None, apart=False).log_constant)
        return torch.stack(found).min()

    def _measured(self, s: int, j: int, rest: bool) -> Bound | None:
        """The norm of a map that is a single block, which is known already."""
        alone = not rest and list(self.network.row(s)) == [j]
        return self.direct[s, j] if alone else None


def window_start(network: Network, s: int, window: int | None) -> int:
    """The last cut vertex at least `window` nodes before row s: no block that row s depends on passes it by."""
    if window is None:
        return 0
    crossing = [(k, j) for k, j in network.blocks if k <= s]
    return next((v for v in range(s - window, 0, -1) if not any(j < v < k for k, j in crossing)), 0)


def _entries(network: Network, starts: dict[int, int]) -> int:
    """Entries of all composed matrices together."""
    widths = [math.prod(network.shape_of(j)) for j in range(network.sink)]
    return sum(math.prod(network.shape_into(s)) * sum(widths[start:s]) for s, start in starts.items())
