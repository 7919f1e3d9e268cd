"""Bounds of the Hessian of a network of pointwise nodes on a bounded region."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.jacobian_intervals import Slopes, Span, backward, slopes_of
from lipkit.bounds.local.measured_network import MeasuredNetwork, deterministic_norm
from lipkit.bounds.local.ranges import middle
from lipkit.errors import TooLargeError
from lipkit.linops import Dense
from lipkit.rounding.float64 import gamma, norm_up, sums_up
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192
from lipkit.trace import Reach
from lipkit.trace.nodes import Pointwise

# Entries of Jacobians and of one Hessian that are formed.
_ENTRIES = 2**22


@final
@dataclass(frozen=True, eq=False)
class Bends:
    """One node with curvature: intervals for f'' of its entries, and for the derivatives of z by the input."""

    under: Float64[Tensor, " size"]
    over: Float64[Tensor, " size"]
    rows: Span


@final
@dataclass(frozen=True, eq=False)
class Curved:
    """Everything the Hessians of all outputs have in common."""

    found: MeasuredNetwork
    slopes: Slopes
    nodes: dict[int, Bends]

    def convex(self, entry: int) -> bool:
        """Whether one entry of the output is proven convex on the region.

            H(x) = sum_k sum_i g_ki(x) f''_ki(x) v_ki(x) v_ki(x)^T,   g = d out / d y,  v = d z / d x,
        is at least sum c_ki v_ki v_ki^T in the order of symmetric matrices, with c_ki the least g f'' on the region.
        All c >= 0 is a proof. Otherwise the v lie in intervals, so the sum is H_c + E with |E| <= R entry by entry, and
            min_i (H_ii - R_ii - sum_{j != i} (|H_ij| + R_ij)) >= 0   (Gershgorin)
            lambda_min(H_c) >= ||R||                                  (Weyl; the eigenvalues verified)
        are proofs. A kink whose slope jumps up counts as f'' up to +inf, which only c from below is taken of.
        """
        least = {k: ends[0] for k, ends in self._weights(entry).items()}
        if all(bool((c >= 0).all()) for c in least.values()):
            return True
        if not all(bool(torch.isfinite(c).all()) for c in least.values()):
            return False
        mid, width = self._enclose({k: (c, torch.zeros_like(c)) for k, c in least.items()})
        return _dominant(mid, width) or _positive(mid, width)

    def largest(self, entry: int) -> float:
        """An upper bound of ||H(x)||_2 of one entry of the output over the region; the g f'' are intervals here."""
        weights = self._weights(entry)
        if not all(bool(torch.isfinite(end).all()) for ends in weights.values() for end in ends):
            return math.inf
        mid, width = self._enclose({k: middle(least, most) for k, (least, most) in weights.items()})
        if not bool(torch.isfinite(mid).all() and torch.isfinite(width).all()):
            return math.inf
        return (deterministic_norm(Dense(mid)) + deterministic_norm(Dense(width))) * (1 + ROUNDINGS_8)

    def _weights(self, entry: int) -> dict[int, tuple[Tensor, Tensor]]:
        """The range of g f'' for every entry of every node with curvature that the output depends on."""
        unit = torch.zeros(1, *self.found.network.target, dtype=torch.float64, device=self.found.device)
        unit.view(-1)[entry] = 1
        on_y = backward(self.found, self.slopes, self.found.network.sink, unit)[1]
        return {k: _products(on_y[k].ends, bends) for k, bends in self.nodes.items() if k in on_y}

    def _enclose(self, weights: dict[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """(H_c, R) for weights c with radii e: R is rounded up."""
        size = math.prod(self.found.network.source)
        mid = torch.zeros(size, size, dtype=torch.float64, device=self.found.device)
        width = torch.zeros_like(mid)
        for k, (c, e) in weights.items():
            m, r = self.nodes[k].rows.mid, self.nodes[k].rows.width
            weight, far = c.abs()[:, None], m.abs() + r
            mid = mid + m.mT @ (c[:, None] * m)
            cross = m.abs().mT @ (weight * r)
            spread = cross + cross.mT + r.mT @ (weight * r) + far.mT @ (e[:, None] * far)
            # Roundings of the two products by c, of the sums, and of adding up nodes.
            slack = gamma(len(c) + len(weights) + 8)
            width = (width + spread + 2 * slack * (m.abs().mT @ (weight * m.abs()))) * (1 + 4 * slack)
        return (mid + mid.mT) / 2, (width + width.mT) / 2 + gamma(4) * mid.abs()


def curved(found: MeasuredNetwork, zs: list[Reach]) -> Curved:
    """The parts of all Hessians of a network of pointwise nodes on the region of the ranges `zs`.

    Refuses other nodes, unbounded slopes, and what is too large. Cost: three adjoints of the network for each entry of
    a node with curvature.
    """
    slopes = slopes_of(found, zs)
    inputs = math.prod(found.network.source)
    entries = inputs * max(inputs, sum(math.prod(found.network.shape_into(k)) for k in slopes))
    if entries > _ENTRIES:
        raise TooLargeError(
            f"The Hessian and the Jacobians of a network with {inputs} inputs would have {entries} entries, "
            f"the limit is {_ENTRIES}; only the rules of composition apply."
        )
    nodes: dict[int, Bends] = {}
    for k in slopes:
        node = found.network.nodes[k - 1]
        assert isinstance(node, Pointwise)
        under, over = (end.flatten() for end in node.activation.bends(zs[k - 1].low, zs[k - 1].high))
        if bool(((under != 0) | (over != 0)).any()):
            units = torch.eye(under.numel(), dtype=torch.float64, device=found.device)
            span = backward(found, slopes, k, units.reshape(-1, *node.shape))[0]
            nodes[k] = Bends(under, over, Span(span.mid.flatten(1), span.width.flatten(1)))
    return Curved(found, slopes, nodes)


def _products(g: tuple[Tensor, Tensor], bends: Bends) -> tuple[Tensor, Tensor]:
    """The least and the largest product of a number in g and one in the bends, rounded outward."""
    ends = [a.flatten() * b for a in g for b in (bends.under, bends.over)]
    # Zero times infinity: a derivative of exactly zero, which takes no part.
    every = torch.stack([torch.where(torch.isnan(end), 0.0, end) for end in ends])
    # One rounding, and what underflows; a product with zero is exact.
    down, up = (torch.where(every == 0, 0.0, every + sign * (every.abs() * ROUNDINGS_8 + 1e-300)) for sign in (-1, 1))
    return torch.where(every >= 0, down.clamp(min=0), down).amin(0), torch.where(every <= 0, up.clamp(max=0), up).amax(
        0
    )


def _dominant(mid: Tensor, width: Tensor) -> bool:
    """Gershgorin's circles lie in the right half-plane, for every symmetric matrix in the intervals."""
    others = mid.abs().sum(1) - mid.diagonal().abs() + width.sum(1)
    slack = gamma(2 * len(mid) + 8) * (mid.abs().sum(1) + width.sum(1))
    return bool((mid.diagonal() - others >= 2 * slack).all())


def _positive(mid: Tensor, width: Tensor) -> bool:
    """lambda_min(mid) >= ||width||: an eigendecomposition, multiplied out again."""
    if not bool(torch.isfinite(mid).all() and torch.isfinite(width).all()):
        return False
    values, vectors = torch.linalg.eigh(mid)
    least = float(values.min())
    if least <= 0:
        return False
    size = len(mid)
    product = (vectors * values) @ vectors.mT
    terms = (vectors.abs() * values.abs()) @ vectors.abs().mT
    lost = sums_up(mid - product) + sums_up(gamma(size + 8) * (terms + mid.abs()))
    # ||V^T x||^2 >= (1 - defect) ||x||^2.
    defect = sums_up(vectors @ vectors.mT - torch.eye(size, dtype=mid.dtype, device=mid.device))
    defect = defect + gamma(size + 4) * norm_up(vectors, 2) ** 2 * 2
    return least * (1 - 2 * float(defect)) >= (float(lost) + float(sums_up(width))) * (1 + ROUNDINGS_8192)
