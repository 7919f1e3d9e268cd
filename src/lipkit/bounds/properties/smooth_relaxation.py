"""A network without kinks that is proven close to a network with them."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import DAG, failures, fold_network, tails
from lipkit.bounds.local.measured_network import measure_network
from lipkit.bounds.properties.second_derivatives import is_smooth
from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.errors import ArgumentError, NeedsRegion, UnsupportedError
from lipkit.rounding.float64 import exp_of, log_product, log_sum, log_up
from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.trace import Network
from lipkit.trace.nodes import Node, PiecewiseLinear, Pointwise
from lipkit.trace.nodes.activations.rounded_kinks import Softened, round_kinks
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.window_maxima import WindowMax

# A handful of roundings.
_ULPS = ROUNDINGS_16


@final
@dataclass(frozen=True)
class Deviation:
    """How an error of relaxation prints in a bound."""

    mu: float

    def __str__(self) -> str:
        return f"largest |f - f_mu| of any output at any input, mu = {self.mu:g}"


@final
@dataclass(frozen=True, eq=False)
class SmoothRelaxation:
    """A smooth network f_mu, and a bound of sup_x ||f(x) - f_mu(x)||_inf over the whole space (kind UPPER).

    `error` is no Lipschitz constant: its `method` says what it bounds, its metric only that outputs are compared in
    l_inf.
    """

    network: Network
    error: Bound


def smooth_relaxation(network: Network, mu: float) -> SmoothRelaxation:
    """The network with every kink rounded off at the scale mu > 0.

        piecewise linear f   f + sum of jump (mu softplus((z - t) / mu) - relu(z - t)) over the kinks t
                             (ReLU: mu softplus(z / mu), error mu log 2, curvature 1 / (4 mu));
        |z|                  sqrt(z^2 + mu^2), error mu, curvature 1 / mu;
        max, min, pooling    +-mu log sum exp(+-z / mu), error mu log n, curvature 1 / (2 mu).
    Nodes without kinks stay. Refused by name: sorting and order statistics between the extremes, other activations with
    kinks, and nodes of which nothing is known (norms of vectors, declared modules).

    The error is that of changing one node after another, each step seen through the original nodes behind it:
        sup ||f - f_mu||_inf <= min( sum_k M_k ||e_k||_2,  largest entry of e at the output ),
    where e_k is the error of node k, M_k the constant of the output with respect to it, and e the vector that goes
    through the rows as |A| e and through the nodes by their slopes. The second form knows single entries, the first
    does not grow with |A|. Guarantee: UPPER for all inputs in real arithmetic, no gradient. Cost: `DAG`, and two
    applications of every operator.
    Reference: Nesterov 2005 and Beck and Teboulle 2012 for the single functions; the two sums are ours.
    """
    if not (mu > 0 and math.isfinite(mu)):
        raise ArgumentError(f"A relaxation needs a finite mu > 0, got {mu}.")
    refused = [f"{network.origin(k)} ({node})" for k, node in enumerate(network.nodes, start=1) if not _can(node)]
    if refused:
        raise UnsupportedError(
            f"{'; '.join(refused)}: no smooth version is known. Replace sorting by maxima or a softmax, or the "
            "activation by a smooth one."
        )
    # What a node was known to receive is no longer true: the values before it have moved.
    network = replace(network, nodes=tuple(map(_anywhere, network.nodes)))
    smooth = replace(network, nodes=tuple(_smooth(node, mu) for node in network.nodes))
    with torch.no_grad():
        errors = [_error(node, mu) for node in network.nodes]
        entries = _by_entries(network, errors)
        norms, failure = _by_norms(network.detach(), errors)
    log_value, failure = (norms, failure) if bool(norms < entries) else (entries, 0.0)
    if not bool(log_value < math.inf):
        raise NeedsRegion("The network is not Lipschitz on the whole space, so no error of its relaxation is known.")
    found = Bound(log_value, Kind.UPPER, Deviation(mu), Metric(math.inf, math.inf), failure=failure)
    return SmoothRelaxation(smooth, found)


def _anywhere(node: Node) -> Node:
    match node:
        case Pointwise():
            return Pointwise(node.activation, node.size)
        case WindowMax():
            return WindowMax(node.size, node.windows)
        case _:
            return node


def _can(node: Node) -> bool:
    match node:
        case Pointwise():
            return not node.activation.kinks or isinstance(node.activation, PiecewiseLinear)
        case OrderStatistics():
            return len(node.ranks) == 1 and node.ranks[0] % node.shape[-1] in (0, node.shape[-1] - 1)
        case WindowMax():
            return True
        case _:
            return is_smooth(node)


def _smooth(node: Node, mu: float) -> Node:
    match node:
        case Pointwise(PiecewiseLinear() as activation) if activation.kinks:
            return Pointwise(round_kinks(activation, mu), node.size)
        case WindowMax():
            return SoftMaximum(node.size, node.windows, mu)
        case OrderStatistics():
            every = torch.arange(node.shape[-1])[None]
            return SoftMaximum(node.size, every, mu, -1 if node.ranks[0] % node.shape[-1] == 0 else 1)
        case _:
            return node


def _error(node: Node, mu: float) -> Float64[Tensor, "..."]:
    """The largest |phi - phi_mu| of every entry, rounded up."""
    match node:
        case Pointwise(PiecewiseLinear() as activation) if activation.kinks:
            return _off(activation, mu).expand(node.target)
        case WindowMax() | OrderStatistics():
            smooth = _smooth(node, mu)
            assert isinstance(smooth, SoftMaximum)
            return smooth.error.expand(node.target)
        case _:
            return torch.zeros(node.target, dtype=torch.float64)


def _off(activation: PiecewiseLinear, mu: float) -> Float64[Tensor, "..."]:
    """|f - f_mu| for a piecewise linear f: what is added at a kink lies between 0 and mu log 2 times its jump."""
    if not isinstance(round_kinks(activation, mu), Softened):
        # sqrt(z^2 + mu^2), whose distance from |z| is largest at 0.
        return torch.tensor(mu, dtype=torch.float64)
    gradients = [torch.as_tensor(g).detach().to(torch.float64) for g in activation.gradients]
    jumps = torch.stack(torch.broadcast_tensors(*(after - before for before, after in pairwise(gradients))))
    most = torch.maximum(jumps.clamp(min=0).sum(0), jumps.clamp(max=0).sum(0).abs())
    return most * (mu * math.log(2) * (1 + _ULPS))


def _by_norms(network: Network, errors: list[Tensor]) -> tuple[Float64[Tensor, ""], float]:
    """log of sum_k M_k ||e_k||_2, and what it fails with; +inf where a node has no constant in l2."""
    marked = {id(node): error for node, error in zip(network.nodes, errors, strict=True)}
    fused = DAG().fused(network)
    try:
        fold = fold_network(fused, Meter(), joined=False)
    except NeedsRegion:
        return torch.full((), math.inf, dtype=torch.float64), 0.0
    behind = tails(fused, fold.norms)
    total = torch.full_like(fold.log_value, -math.inf)
    for k, node in enumerate(fused.nodes, start=1):
        error = marked[id(node)].to(total.device)
        size = torch.linalg.vector_norm(error) * (1 + error.numel() * _ULPS)
        total = log_sum(total, log_product(behind[k].to(total.device), log_up(size), 1.0), 1.0)
    return total, failures(tuple(fold.norms.values()))


def _by_entries(network: Network, errors: list[Tensor]) -> Float64[Tensor, ""]:
    """log of the largest entry of the vector of errors at the output."""
    found = measure_network(network)
    ys = [torch.zeros(network.source, dtype=torch.float64, device=found.device)]
    for k, row in found.fused.items():
        z = torch.zeros(network.shape_into(k), dtype=torch.float64, device=found.device)
        for j, block in row.blocks.items():
            z = z + block.tight.apply(ys[j])
        z = z * (1 + 4 * row.slack())
        if k == network.sink:
            return log_up(z.max())
        ys.append((_carry(network.nodes[k - 1], z) + errors[k - 1].to(z.device)) * (1 + _ULPS))
    raise AssertionError("a network ends in its output row")


def _carry(node: Node, z: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """How far phi moves at most, entry by entry, if no entry of its argument moves by more than z."""
    match node:
        case Pointwise():
            alpha, beta = node.slopes()
            return torch.where(z == 0, 0.0, torch.maximum(alpha.abs(), beta.abs()).to(z.device) * z)
        case WindowMax():
            return z[..., node.windows.to(z.device)].amax(-1)
        case OrderStatistics():
            return z.amax(-1, keepdim=True).expand(node.target)
        case _:
            most = exp_of(node.log_constant(math.inf), 1.0).to(z.device) * z.max()
            return torch.where(z.max() == 0, 0.0, most).expand(node.target)
