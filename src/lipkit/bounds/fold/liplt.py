"""LipLT: nonlinearities as a mean slope plus a smaller rest, so that linear maps are composed before their norms."""

from dataclasses import dataclass
from time import monotonic
from typing import final

from lipkit.bound import L2, Bound, Kind, Metric
from lipkit.bounds._base import Method
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import DAG, failures, joins
from lipkit.bounds.fold.expansion import Expansion, fits_as_matrices, window_start
from lipkit.errors import ArgumentError, MetricError
from lipkit.norms import Auto, Norm
from lipkit.regions import Region
from lipkit.trace import Network
from lipkit.trace.rewrites.fuse import Junctions, fuse


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
        limit = "" if self.budget is None else f", norms begun within {self.budget:.3g} s"
        return f"LipLT{window}{', refined' if self.refine else ''}{limit}"

    def work(self, network: Network) -> int:
        """How many blocks one application of every map passes through: what the cost is proportional to.

        Matrices are formed once, so each counts as one block there.
        """
        fused = fuse(network, Junctions())
        starts = {s: window_start(fused, s, self.window) for s in range(1, fused.sink + 1)}
        if fits_as_matrices(fused, self.window):
            return sum(s - start for s, start in starts.items())
        pairs = [(s, j) for s, start in starts.items() for j in range(start, s)]
        return sum(sum(j <= i and k <= s for k, i in fused.blocks) for s, j in pairs)

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
