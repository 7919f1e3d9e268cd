"""LipLT: nonlinearities as a mean slope plus a smaller rest, so that linear maps are composed before their norms."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._runtime import refuse_late
from lipkit.bound import L2, Bound, Kind, Metric, Rule
from lipkit.bounds._base import Method
from lipkit.bounds.fold.block_norms import Meter, dominating_diagonals, scale_rows
from lipkit.bounds.fold.dag import DAG, Term, disjoint, failures, fold_row, joins
from lipkit.bounds.fold.linear_paths import DensePaths, Paths, Pulled, SweepPaths
from lipkit.errors import ArgumentError, MetricError, NonFiniteError, OutOfTimeError
from lipkit.linops import LinearOperator
from lipkit.norms import Auto, Norm
from lipkit.regions import Region
from lipkit.rounding.float64 import log_product, log_sum
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise
from lipkit.trace.rewrites.fuse import Junctions, fuse

# The norm of a term that is less than this share of a row, inverted, is measured only so well that its excess stays
# below the excess allowed to a term of that share.
_MINOR = 16.0
# Up to this many entries in all composed matrices together they are written out.
_DENSE = 2**24

Log = Float64[Tensor, ""]
Source = tuple[int, bool]


@final
class Expansion:
    """The recursion m_s = ||P_s0|| + sum_j ||P_sj R_j|| m_j: constants found so far, and every norm that was used.

    A source of row s is a pair (j, True) for the rest of node j, or (j, False) for the opaque value j at the start of
    the window. Norms are measured from the largest contribution down, those of minor terms less accurately: each adds
    at most a sixteenth of the norm's tolerance to the row. What is left below `negligible` of the sum keeps the bound
    that the norms of shorter maps give, ||P_sj|| <= sum_i ||A_si|| ||C_i|| ||P_ij||: never less true, and far cheaper,
    because contributions fall geometrically with distance. So do maps beyond the range of float64, and all those that
    are left once it is `late`; the norms of the blocks themselves are always measured.
    """

    def __init__(
        self,
        network: Network,
        meter: Meter,
        window: int | None,
        negligible: float = 0.0,
        refine: bool = False,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        network.require_constants(meter.p)
        # Once for all maps: every norm is taken in float64.
        network = network.to(torch.float64)
        self.network = network
        self.meter = meter
        self.window = window
        self._starts = window_starts(network, window)
        self._late = late
        places = sorted(network.blocks)
        found = meter.many([network.blocks[at] for at in places], [j == 0 for _, j in places])
        self.direct = dict(zip(places, found, strict=True))
        self.norms: list[Bound] = list(found)
        splits = {k: node.split(meter.p) for k, node in enumerate(network.nodes, start=1)}
        device = network.device  # Found by a walk over all tensors, so once.
        pulled = {k: Pulled.of(split, device, meter.p) for k, split in splits.items()}
        sizes = {at: meter.spectral_size(network.blocks[at], bound, at[1] == 0) for at, bound in self.direct.items()}
        self.paths: Paths = (DensePaths if fits_as_matrices(network, window) else SweepPaths)(network, pulled, sizes)
        self._refine = refine and isinstance(self.paths, DensePaths)
        self._negligible = math.log(negligible) if negligible else -math.inf
        self._into: dict[int, Log] = {}
        self._known: dict[tuple[int, Source], Log] = {}

    def into(self, s: int) -> Log:
        """log m_s, the constant of z_s."""
        for k in range(1, s + 1):
            if k not in self._into:
                # Rows that are not measured are added up in milliseconds, but a thousand of them take long.
                refuse_late(grace=0.5)
                self._into[k] = self._constant(k)
        return self._into[s]

    def out(self, j: int) -> Log:
        """log of the constant of y_j, the nonlinearity included."""
        if j == 0:
            return torch.zeros((), dtype=torch.float64)
        return log_product(self.into(j), self.network.nodes[j - 1].log_constant(self.meter.p).cpu(), 1.0)

    def sources(self, s: int) -> list[Source]:
        """Where row s comes from: the rests inside its window, latest first, and the opaque value it starts from."""
        start = self._starts[s]
        inside = [j for j in range(start + 1, s) if self.paths.pulled[j].scale > 0]
        return [*((j, True) for j in reversed(inside)), (start, False)]

    def size(self, source: Source) -> Log:
        """log of the constant of a source, before its map."""
        j, rest = source
        return self.into(j) if rest else self.out(j)

    def _constant(self, s: int) -> Log:
        row = self.network.row(s)
        terms = [Term(op, self.direct[s, j], self.out(j)) for j, op in row.items()]
        apart = len(row) > 1 and len(disjoint(terms)) > 1
        plain = fold_row(terms, self.meter.p, None, apart).log_constant
        if s < self.network.sink and self.paths.pulled[s].scale == 0 and self.window is None:
            return plain  # An identity, which no window starts from: its constant is asked for by no row.
        reached = [(source, log) for source in self.sources(s) if (log := self._from_shorter(s, source)) is not None]
        terms, measured = self._terms(s, reached, apart)
        return torch.minimum(plain, fold_row(terms, self.meter.p, None, apart and measured).log_constant)

    def _terms(self, s: int, reached: list[tuple[Source, Log]], every: bool) -> tuple[list[Term], bool]:
        """One term for each source, measured from the largest down while what is left is not negligible.

        And whether all were: of a term that was not, nobody knows which outputs it writes to, so it is in one group
        with all others.
        """
        left = sorted(reached, key=lambda one: float(one[1].detach() + self.size(one[0]).detach()), reverse=True)
        weights_left = torch.tensor([float((log + self.size(source)).detach()) for source, log in left])
        found: list[Term] = []
        total, measured = -math.inf, True
        for i, (source, log) in enumerate(left):
            rest = float(weights_left[i:].logsumexp(0))
            if self._late() or (not every and found and rest <= self._negligible + total):
                found += [self._bound_from_shorter(s, one, bound) for one, bound in left[i:]]
                measured = False
                break
            try:
                term = self._measure(s, source, math.exp(min(total - float(weights_left[i]), 300.0)) / _MINOR)
            except (NonFiniteError, OutOfTimeError):
                # A map that leaves the range of float64 on its way; logarithms of shorter ones do not. Or it is late.
                term = self._bound_from_shorter(s, source, log)
                measured = False
            found.append(term)
            total = float(torch.tensor([total, float(term.log_product.detach())]).logsumexp(0))
        return found, measured

    def _from_shorter(self, s: int, source: Source) -> Log | None:
        """log of sum_i ||A_si|| ||C_i|| ||P_ij||, with what is known of the shorter maps; None without a path."""
        if (s, source) in self._known:
            return self._known[s, source]
        j, rest = source
        total: Log | None = None
        for i in self.network.row(s):
            pulled = self.paths.pulled.get(i)
            if i < j or (i > j and (pulled is None or pulled.center == 0)):
                continue
            if i == j:
                inner: Log | None = _log(pulled.scale if rest and pulled is not None else 1.0)
            else:
                shorter = self._from_shorter(i, source)
                assert pulled is not None, "a value between two nodes is a node"
                inner = None if shorter is None else log_product(shorter, _log(pulled.center), 1.0)
            if inner is not None:
                term = log_product(self.direct[s, i].log_value.cpu(), inner, 1.0)
                total = term if total is None else log_sum(total, term, 1.0)
        if total is not None:
            self._known[s, source] = total
        return total

    def _bound_from_shorter(self, s: int, source: Source, log: Log) -> Term:
        op = next(iter(self.network.row(s).values()))
        return Term(op, Bound(log, Kind.UPPER, Rule.COMPOSE), self.size(source))

    def _measure(self, s: int, source: Source, loosened: float) -> Term:
        j, rest = source
        op = self.paths.operator(s, j, rest)
        assert op is not None, "a map with a bound has a path"
        if not rest and list(self.network.row(s)) == [j]:
            norm = self.direct[s, j]
        else:
            norm = self.meter.many([op], [j == 0], max(1.0, loosened))[0]
            self.norms.append(norm)
        self.paths.learn(s, j, rest, self.meter.spectral_size(op, norm, j == 0))
        self._known[s, source] = norm.log_value.cpu()
        weighable = rest and self._refine and isinstance(self.network.nodes[j - 1], Pointwise)
        return Term(op, norm, self.size(source), self._limit(op, j) if weighable else None)

    def _limit(self, op: LinearOperator, j: int) -> Log:
        """log Lip(D z_j) by the same recursion, for the better of two diagonals D with op* op <= D^2."""
        found: list[Tensor] = []
        for d in dominating_diagonals(op):
            terms: list[Term] = []
            for source in self.sources(j):
                inner = self.paths.operator(j, *source)
                if inner is not None:
                    norm = self.meter.many([scale_rows(d, inner)], [source[0] == 0])[0]
                    self.norms.append(norm)
                    terms.append(Term(inner, norm, self.size(source)))
            found.append(fold_row(terms, self.meter.p, None, apart=False).log_constant)
        return torch.stack(found).min()


def window_starts(network: Network, window: int | None) -> dict[int, int]:
    """For each row s the last cut vertex at least `window` nodes before it: no block up to row s passes it by."""
    if window is None:
        return dict.fromkeys(range(1, network.sink + 1), 0)
    # The first row that reads past a vertex: from that row on it is none.
    passed = np.full(network.sink + 1, network.sink + 1)
    for k, j in network.blocks:
        np.minimum(passed[j + 1 : k], k, out=passed[j + 1 : k])
    return {s: next((v for v in range(s - window, 0, -1) if passed[v] > s), 0) for s in range(1, network.sink + 1)}


def fits_as_matrices(network: Network, window: int | None) -> bool:
    """Whether all composed maps are formed as matrices."""
    widths = [math.prod(network.shape_of(j)) for j in range(network.sink)]
    before = [0, *itertools.accumulate(widths)]
    rows = window_starts(network, window).items()
    return sum(math.prod(network.shape_into(s)) * (before[s] - before[start]) for s, start in rows) <= _DENSE


def _log(value: float) -> Log:
    """log of a size, rounded up."""
    return torch.tensor(value * (1 + ROUNDINGS_8), dtype=torch.float64).log()


@final
@dataclass(frozen=True)
class LipLT(Method):
    """Loop transformation on any directed acyclic network: with phi_j = C_j + R_j psi_j, psi_j nonexpansive,

        m_s = ||P_s0|| + sum_{j < s} ||P_sj R_j|| m_j,

    where P_sj is the linear map from value j to row s with all psi cut out, and m_s the constant of z_s. Nodes without
    a linear part (sorting, pooling, ...) have C = 0. Rows are folded as in `DAG`, so that m_s is never above its value
    there. With a `window` w, a sink looks back to the last cut vertex that is at least w nodes before it, which counts
    as opaque: O(K w) norms instead of O(K^2). A norm that is randomised is drawn afresh for every map.
    Terms that add up to less than `negligible` of a sum are bounded through shorter maps instead of measured.
    With `refine`, the term of a pointwise node is the smaller of the above and Lip(D_sj z_j), for diagonal D_sj with
    (P_sj R_j)*(P_sj R_j) <= D_sj^2, which holds because |psi_j(z) - psi_j(z')| <= |z - z'| entry by entry.
    After `budget` seconds no further norm of a composed map is begun: the rest is bounded through shorter maps too.

    Guarantee: UPPER, never above `DAG` beyond the slack of the norms; failures add up. Differentiable in the weights.
    Cost: K (K + 1)/2 norms of composed maps, as matrices while those have at most 2^24 entries together; K^3/3 with
    `refine`, which is only done for matrices.
    References: Fazlyab et al. 2023 for feed-forward and residual nets; on general graphs, and the window, ours.
    """

    norm: Norm = Auto()
    window: int | None = None
    metric: Metric = L2
    negligible: float = 1e-3
    refine: bool = False
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ArgumentError(f"LipLT.window must be at least 1, or None for no window, got {self.window}.")
        if not 0 <= self.negligible < 1:
            raise ArgumentError(f"LipLT.negligible must lie in [0, 1), got {self.negligible}.")
        if self.refine and self.metric != L2:
            raise MetricError(f"LipLT.refine weighs squares, so it needs the metric {L2}, got {self.metric}.")
        if self.budget is not None and not self.budget > 0:
            raise ArgumentError(f"LipLT.budget must be a number > 0, or None for no limit, got {self.budget}.")

    def __str__(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        limit = "" if self.budget in (None, math.inf) else f", norms begun within {self.budget:.3g} s"
        return f"LipLT{window}{', refined' if self.refine else ''}{limit}"

    def work(self, network: Network) -> int:
        """How many blocks one application of every map passes through: what the cost is proportional to.

        Matrices are formed once, so each counts as one block there.
        """
        fused = fuse(network, Junctions())
        starts = window_starts(fused, self.window)
        if fits_as_matrices(fused, self.window):
            return sum(s - start for s, start in starts.items())
        # Blocks up to row s that read value j or a later one, for every j.
        passes, total = np.zeros(fused.sink, dtype=np.int64), 0
        for s, row in fused.rows().items():
            for i in row:
                passes[: i + 1] += 1
            total += int(passes[starts[s] : s].sum())
        return total

    def _bound(self, network: Network, region: Region) -> Bound:
        started = monotonic()

        def late() -> bool:
            return self.budget is not None and monotonic() - started > self.budget

        fused, meter = fuse(network, Junctions()), Meter(self.metric, self.norm)
        run = Expansion(fused, meter, self.window, self.negligible, self.refine, late)
        log_value = run.into(run.network.sink)
        parts = tuple(run.norms)
        found = Bound(log_value, Kind.UPPER, self, self.metric, region, failure=failures(parts), parts=parts)
        # Where values are joined, a fold over other cuts may win; elsewhere it cannot.
        return found.best(DAG(self.norm, metric=self.metric)(network, region)) if joins(network) else found
