"""The Lipschitz constant of the Jacobian of a network."""

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import DAG, Fold, failures, fold_network, tails
from lipkit.bounds.local.local import restrict
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Intervals, Ranges
from lipkit.bounds.properties.hessian_bounds import curved
from lipkit.bounds.properties.second_derivatives import curvature
from lipkit.bounds.properties.value_ranges import reaches, require_finite
from lipkit.errors import NeedsRegion, NonFiniteError, TooLargeError, UnsupportedError
from lipkit.linops.queries.row_norms import row_norms
from lipkit.norms import Auto, Norm
from lipkit.regions import Everywhere, Region
from lipkit.rounding.float64 import log_product, log_sum, log_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Pointwise

# Up to this many outputs have their Hessians enclosed.
_OUTPUTS = 64


@final
@dataclass(frozen=True)
class Smoothness:
    """A constant L with ||J(x) - J(y)||_2 <= L ||x - y||_2 for the Jacobian J of the network, x and y in the region.

    Along a path through the network, L_(g o f) <= L_g l_f^2 + l_g L_f, and sums add. Written out over all nodes,
        L <= sum_k M_k max_i(B_ki r_ki) l_k,
    where M_k is the constant of the output with respect to y_k, l_k that of z_k with respect to the input, r_ki that of
    the single entry z_ki, and B_ki the largest |f''| on its range: ||f'' o Dz u o Dz v|| <= max(B r ||u||) ||Dz v||.
    Nodes that are no pointwise functions (products, softmax, ...) have C_k l_k^2 with ||D^2 phi_k|| <= C_k instead.
    On bounded regions the Hessians of small networks of pointwise nodes are also enclosed by intervals, and the smaller
    of (sum of ||H||^2 over the outputs)^(1/2) and the sum above is returned: on small regions the former.
    The r for one l_k is ours, as is the sum over nodes; it is never above the rule for compositions.

    The bound is about x -> J(x), not about the network: do not mix it with constants of the network itself.
    Guarantee: UPPER on the whole space and on balls and boxes (they are convex); failures of randomised norms add up.
    No gradient. A kink in the range of a node, or a node whose curvature is not known, is refused by name: use
    `smooth_relaxation`, a smaller region, or a smooth activation. A node that is not Lipschitz on the whole space (a
    square, a product) needs a bounded region, although its Jacobian may be. Cost: `DAG`, the lengths of the rows of all
    blocks, and the ranges. Reference: Roulet and Harchaoui 2019 for the calculus of smoothness constants.
    """

    norm: Norm = Auto()
    ranges: Ranges = field(default_factory=Intervals)

    def __str__(self) -> str:
        return "Lipschitz constant of the Jacobian"

    def __call__(self, network: Network, region: Region = Everywhere()) -> Bound:
        """The smoothness of `network` on `region`."""
        require_finite(network)
        with torch.no_grad():
            found = measure_network(network)
            zs = reaches(found, self.ranges)(region)
            known = _measure(found.network, zs, region)
            _refuse_kinks(known)
            fused = DAG(self.norm).fused(known)
            fold = fold_network(fused, Meter(spectral=self.norm), joined=True)
            behind = tails(fused, fold.norms)
            total = torch.full_like(fold.log_value, -math.inf)
            for k in range(1, fused.sink):
                total = log_sum(total, log_product(behind[k].to(total.device), _bend(fold, k), 1.0), 1.0)
            direct = _by_hessians(found, zs) if region != Everywhere() else torch.full_like(total, math.inf)
        parts = (*fold.norms.values(), *fold.extra)
        # No random number takes part in the second form.
        failure = failures(parts) if bool(total <= direct) else 0.0
        return Bound(torch.minimum(total, direct), Kind.UPPER, self, region=region, failure=failure, parts=parts)


def _measure(network: Network, zs: list[Reach], region: Region) -> Network:
    """The network with what each node can receive; on the whole space only pointwise nodes are told."""
    if region != Everywhere():
        return restrict(network, zs)
    nodes = (
        node.within(z) if isinstance(node, Pointwise) else node for node, z in zip(network.nodes, zs[:-1], strict=True)
    )
    return replace(network, nodes=tuple(nodes))


def _by_hessians(found: MeasuredNetwork, zs: list[Reach]) -> Float64[Tensor, ""]:
    """log of (sum over outputs of ||H||^2)^(1/2), the Hessians enclosed by intervals; +inf where they cannot be."""
    outputs = math.prod(found.network.target)
    nothing = torch.full((), math.inf, dtype=torch.float64, device=found.device)
    if outputs > _OUTPUTS:
        return nothing
    try:
        hessians = curved(found, zs)
    except (UnsupportedError, NonFiniteError, TooLargeError):
        return nothing
    total = math.hypot(*(hessians.largest(i) for i in range(outputs))) * (1 + outputs * ROUNDINGS_8)
    return log_up(nothing.new_tensor(total))


def _bends(node: Pointwise) -> Float64[Tensor, "..."]:
    """The largest |f''| on the domain of every entry."""
    assert node.domain is not None
    under, over = node.activation.bends(*node.domain)
    return torch.maximum(under.abs(), over.abs()).expand(node.shape)


def _refuse_kinks(network: Network) -> None:
    rough: list[str] = []
    for k, node in enumerate(network.nodes, start=1):
        match node:
            case Pointwise():
                if not bool(torch.isfinite(_bends(node)).all()):
                    rough.append(f"{network.origin(k)} ({node})")
            case _ if curvature(node) is None:
                rough.append(f"{network.origin(k)} ({node}: its curvature is not known)")
            case _:
                pass
    if rough:
        raise NeedsRegion(
            f"The Jacobian is not known to be Lipschitz: {'; '.join(rough)} has a kink or unbounded curvature in its "
            "range. Give a smaller region, use smooth_relaxation(network, mu), or replace the activation."
        )


def _bend(fold: Fold, k: int) -> Float64[Tensor, ""]:
    """log of a bound of ||phi_k''(z_k)[Dz_k u, Dz_k v]|| over unit u, v."""
    node, slope = fold.network.nodes[k - 1], fold.into[k]
    if not isinstance(node, Pointwise):
        most = log_up(torch.tensor(curvature(node), dtype=torch.float64))
        return log_product(most.to(slope.device), log_product(slope, slope, 1.0), 1.0)
    rows = torch.full(node.shape, -math.inf, dtype=torch.float64, device=slope.device)
    for j, op in fold.network.row(k).items():
        rows = log_sum(rows, log_product(log_up(row_norms(op, 2.0)), fold.out[j], 1.0), 1.0)
    # No entry is steeper than the whole.
    rows = torch.minimum(rows, slope)
    most = log_product(log_up(_bends(node)), rows, 1.0).max()
    return log_product(most, slope, 1.0)
