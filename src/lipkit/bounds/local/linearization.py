"""Local constants from the derivative at the center of a region and from how far it can move there."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit._runtime import refuse_late, time_limit
from lipkit.bound import L2, Bound, Kind, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.fold.balanced_products import unbalance_products
from lipkit.bounds.local.attention_in_steps import attention_in_steps
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import farthest, include, input_reach, intersect, propagate_ranges
from lipkit.bounds.local.sums_of_changes import (
    LAST_STEPS,
    STEPS,
    Change,
    Sizes,
    group_gains,
    rest_terms,
    unit_tensors,
    whole_gain,
)
from lipkit.errors import ArgumentError, NotProvenError, TooLargeError
from lipkit.linops import LinearOperator, depth
from lipkit.norms import AbsoluteSums
from lipkit.regions import Ball, Region
from lipkit.rounding.float64 import exp_of, gamma, log_up, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_512
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import MatrixProduct, Node, Normalization, Product, Softmax, Unit

_ULPS = 1 + ROUNDINGS_32
# More than products may lose to underflow.
_UNDERFLOW = 1e-280
# Errors that are less than this share of what they are errors of are not worth columns of their own.
_GROWN = 2.0**-30


@final
class _Sweep:
    """One region: rows in order, each with its change, its gain |z - z'| <= gain |x - x'|, and its reach."""

    def __init__(self, found: MeasuredNetwork, region: Region) -> None:
        self._found, self._region = found, region
        self._input = input_reach(region, found.network.source, found.device)
        self._rounded = dict[int, Tensor]()
        self._centers = self._evaluate_center()
        start = unit_tensors(found.network.source, found.device)
        zero = start.new_zeros(())
        self._changes = {0: Change({0: start}, zero, zero)}
        self._sizes = Sizes({0: zero + 1}, {0: zero})
        self._plain = {0: zero + 1}
        self._last = {j: k for k, row in found.fused.items() if k not in found.inside for j in row.blocks}

    def _evaluate_center(self) -> list[Reach]:
        """c_1, ..., c_(K+1), computed values at the center; notes the size of d_k = sum_j A_kj phi_j(c_j) + b_k - c_k.

        Every row starts from the c_j, so nothing adds up here. The exact values are z_k = c_k + d_k + sum_j A_kj
        (phi_j(z_j) - phi_j(c_j)): the recursion of changes, with d_k in the place of a difference of inputs.
        """

        def note(k: int, z: Reach, _ys: list[Reach]) -> Reach:
            self._rounded[k] = z.radius
            return Reach(z.center, z.center, z.center, torch.zeros_like(z.radius))

        return propagate_ranges(self._found, Ball(self._input.center, 0.0), True, False, note)

    def refine(self, k: int, z: Reach, _ys: list[Reach]) -> Reach:
        """Restrict z_k by the change of row k, and note the change of y_k."""
        refuse_late()
        row = self._found.fused[k]
        change = self._through_row(k, row)
        self._centers[k - 1] = self._near_center(k, change)
        last = k == self._found.network.sink
        gain = torch.minimum(self._gain(change, LAST_STEPS if last else STEPS), self._folded(row))
        z = include(intersect(z, self._around(k, change, gain)), self._centers[k - 1].center)
        self._require_finite(k, gain)
        if last:
            self.gain = gain
            return z
        self._changes[k] = self._through_node(k, self._found.network.nodes[k - 1], z, change, gain)
        for j in [j for j in self._changes if self._last.get(j, 0) <= k and j < k]:
            del self._changes[j]
        return z

    def _through_row(self, k: int, row: Affine) -> Change:
        parts: dict[int, Tensor] = {}
        error, drift = row.shift.new_zeros(()) + _UNDERFLOW, self._rounded[k] + _UNDERFLOW
        for j, block in row.blocks.items():
            before = self._changes[j]
            for s, columns in before.parts.items():
                image = block.op.apply(columns)
                parts[s] = parts[s] + image if s in parts else image
            lost = row.slack() * float(AbsoluteSums()(block.op).value)
            error = (error + block.norm * before.error + lost * before.mass(self._sizes.gains)) * _ULPS
            drift = (drift + block.norm * before.drift + lost * before.mass(self._sizes.drifts)) * _ULPS
        return Change(parts, error, drift)

    def _near_center(self, k: int, change: Change) -> Reach:
        """Where the exact z_k of the center lies: around the computed c_k."""
        at, off = self._centers[k - 1].center, (change.mass(self._sizes.drifts) + change.drift) * _ULPS
        width = off * _ULPS + ROUNDINGS_32 * at.abs()
        return Reach(at - width, at + width, at, off)

    def _folded(self, row: Affine) -> Tensor:
        """sum_j |A_j| |y_j - y_j'|, each from the constant of its own node."""
        zero = row.shift.new_zeros(())
        return sum((block.norm * self._plain[j] for j, block in row.blocks.items()), zero) * (1 + ROUNDINGS_512)

    def _around(self, k: int, change: Change, gain: Tensor) -> Reach:
        """z_k around its value at the center: entry by entry, and in l2."""
        center, r = self._centers[k - 1], self._input.radius
        near = change.error.expand(center.center.numel())
        first = torch.zeros_like(near)
        for s, columns in change.parts.items():
            rows = columns.flatten(1).mT
            if s:
                near = near + vector_norms(rows, 2.0) * self._sizes.gains[s]
            else:
                first = farthest(self._region, rows)
        width = ((first + near * r) * (1 + ROUNDINGS_512)).reshape(center.center.shape)
        off = torch.maximum(center.high - center.center, center.center - center.low)
        width = (width + off) * _ULPS + ROUNDINGS_32 * center.center.abs()
        return Reach(center.center - width, center.center + width, center.center, (gain * r + center.radius) * _ULPS)

    def _through_node(self, k: int, node: Node, z: Reach, change: Change, gain: Tensor) -> Change:
        self._plain[k] = gain
        if node.is_identity:
            return self._sizes.merge(change, -k)
        node = self._closer(k, node.within(z), change)
        self._plain[k] = gain * exp_of(node.log_constant(2.0), 1.0).to(gain) * _ULPS
        center = self._centers[k - 1]
        if isinstance(node, MatrixProduct):
            return self._through_matrix_product(k, node, change, gain)
        if isinstance(node, Product):
            return self._isolate(k, self._through_product(k, node, z, change, gain), gain)
        split = node.split(2.0)
        rest, weight = rest_terms(node, split, gain.device)
        self._require_finite(k, rest)
        linear = self._linearly(split.center, change)
        if len(rest):
            within = gain if weight is None else torch.minimum(gain, self._gain(change, weight=weight))
            self._sizes.add(linear, k, rest, within, center.radius)
        return self._isolate(k, linear, gain)

    def _gain(self, change: Change, steps: int = STEPS, weight: Tensor | None = None) -> Tensor:
        return whole_gain(change, self._sizes.gains, steps, weight)

    def _isolate(self, k: int, change: Change, gain: Tensor) -> Change:
        """The same change, whose error becomes a term of its own where it has grown."""
        center = self._centers[k - 1]
        small = _GROWN * (torch.linalg.vector_norm(center.center) + center.radius)
        if bool(change.error <= _GROWN * gain) and bool(change.drift <= small):
            return change
        return self._sizes.isolate(change, -k, self._found.network.nodes[k - 1].target)

    def _closer(self, k: int, node: Node, change: Change) -> Node:
        """The node with every group of entries as near to the center as its own gain says, which is below the whole."""
        if not isinstance(node, Normalization | Unit | Softmax):
            return node
        center, shape = self._centers[k - 1], (*node.shape[:-1], 1)
        far = group_gains(change, self._sizes.gains, math.prod(shape)) * self._input.radius + center.radius
        return node.closer(center.center, (far * _ULPS).reshape(shape))

    def _require_finite(self, k: int, number: Tensor) -> None:
        if not bool(torch.isfinite(number).all()):
            origin = self._found.network.origin(k)
            raise NotProvenError(f"{origin} has no finite constant on the {self._region}; take a smaller region.")

    def _linearly(self, center: LinearOperator | None, change: Change) -> Change:
        """The change of C z; of nothing where there is no linear part."""
        if center is None:
            return Change({}, torch.zeros_like(change.error), torch.zeros_like(change.drift))
        center = center.to(device=change.error.device)
        absolute = float(AbsoluteSums()(center).value)
        lost = gamma(depth(center) + 8)
        return Change(
            {s: center.apply(columns) for s, columns in change.parts.items()},
            (absolute * (change.error + lost * change.mass(self._sizes.gains)) + _UNDERFLOW) * _ULPS,
            (absolute * (change.drift + lost * change.mass(self._sizes.drifts)) + _UNDERFLOW) * _ULPS,
        )

    def _through_product(self, k: int, node: Product, z: Reach, change: Change, gain: Tensor) -> Change:
        """a b - a' b' - C (z - z') = (a - a0)(b - b') + (a - a')(b' - b0), entry by entry, C the derivative at z0.

        So the rest is t w with |w| <= |p (b - b')| + |q (a - a')|, as `Product.departure` says.
        """
        center = self._centers[k - 1]
        far = torch.maximum(z.high - center.center, center.center - z.low).clamp(min=0) * _ULPS
        scale, weights = node.departure(far)
        self._require_finite(k, weights)
        linear = self._linearly(node.derivative(center.center), change)
        if not bool((far > 0).any()):
            return linear
        cut, moved, drifts = math.prod(node.left), torch.zeros_like(change.error), list[Tensor]()
        for at in (slice(0, cut), slice(cut, None)):
            half = change.entries(at)
            largest = weights[at].max().clamp(min=1e-200)
            weight = (weights[at] / largest * _ULPS).clamp(max=1.0)
            moved = moved + torch.minimum(gain, self._gain(half, weight=weight)) * largest
            drifts.append((half.mass(self._sizes.drifts) + half.drift) * largest)
        # At the center itself b' = b0, or a = a0: one of the two terms is left, whichever one likes.
        columns = unit_tensors(node.target, moved.device) * scale
        self._sizes.add(linear, k, columns, moved * _ULPS, min(drifts) * _ULPS)
        return linear

    def _through_matrix_product(self, k: int, node: MatrixProduct, change: Change, gain: Tensor) -> Change:
        """A B - A' B' - C (z - z') = (A - A0)(B - B') + (A - A')(B' - B0), for each group, with C the derivative at z0.

        So the rest is at most max_g |A - A0| |B - B'| + max_g |B - B0| |A - A'|, where distances of single groups from
        the center come from their own gains. That is quadratic in the radius, and counts it once for each factor.
        """
        center, r = self._centers[k - 1], self._input.radius
        cut = node.groups * node.rows * node.inner
        far: list[Tensor] = []
        gains: list[Tensor] = []
        for at in (slice(0, cut), slice(cut, None)):
            half = change.entries(at)
            gains.append(torch.minimum(gain, self._gain(half)))
            nearest = group_gains(half, self._sizes.gains, node.groups).max()
            far.append(torch.minimum(gains[-1], nearest) * r + center.radius)
        moved = (far[0] * gains[1] + far[1] * gains[0]) * (1 + ROUNDINGS_512)
        linear = self._linearly(node.derivative(center.center), change)
        # At the center itself A' = A0 and B' = B0. The errors so far join the rest, whose T is 1 too.
        linear = Change(linear.parts, (linear.error + moved) * _ULPS, (linear.drift + center.radius**2) * _ULPS)
        return self._sizes.isolate(linear, k, node.target)


@final
@dataclass(frozen=True)
class Linearization(RegionMethod):
    """The constant on a small ball or box, from the derivative at its center and how far it can move on the region.

    Every node is split where it can be on the region, phi_k(z) = C_k z + R_k psi_k(z) with psi_k nonexpansive: C_k is
    the derivative at the center, or the middle slope, and R_k how far derivatives lie from it. For any two inputs
        z_s - z_s' = P_s0 (x - x') + sum_{j < s} P_sj R_j (psi_j - psi_j'),
        m_s = |P_s0| + sum_{j < s} |P_sj R_j| m_j,   and never more than sum_j |A_sj| Lip(phi_j) m_j,
    where P_sj is the linear map from y_j to z_s through the C_k alone. The same sums, row by row and times the radius,
    say how far z_s can lie from its value at the center; that is where node s is split. One pass finds both, so that a
    region of radius 0 gives the norm of the derivative at a point, and a small one little more. Attention counts as
    three nodes (`attention_in_steps`). Rests of nodes that keep groups of entries apart are weighed by group, each with
    its own distance from the center, and a product of matrices has the rest |A - A0| |B - B'| + |B - B0| |A - A'|.
    The sum of norms is replaced by the norm of all terms beside each other where that is smaller (`sums_of_changes`).
    Rounding errors, those of the values at the center among them, are such terms too: they grow as the network makes
    them, and not by the norm of every layer. Terms below 2^-11 of the whole are merged where values are kept for later.

    Guarantee: UPPER, all rounding counted, no random number. l2 only.
    Cost: every value is a matrix with a column for each input and for each entry of every node before it, written out:
    refuses values of more than `limit` entries. Then a norm for each pair of nodes whose term is not negligible. After
    `budget` seconds it gives up.
    Reference: the recursion is that of LipLT (Fazlyab et al. 2023); ranges in the same pass, and nodes other than
    pointwise ones, are ours.
    """

    limit: int = 2**26
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ArgumentError(f"Linearization.limit must be at least 1, got {self.limit}.")
        if self.budget is not None and not self.budget > 0:
            raise ArgumentError(f"Linearization.budget must be a number > 0, or None for no limit, got {self.budget}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        spelled = attention_in_steps(unbalance_products(network))
        self._refuse_large(spelled)
        found = measure_network(spelled)
        with torch.no_grad(), time_limit(math.inf if self.budget is None else self.budget):
            logs = [self._one(found, one) for one in ([region] if samples is None else samples)]
        value, of = (logs[0], Scope.WHOLE) if samples is None else (torch.stack(logs), Scope.SAMPLE)
        return Bound(value, Kind.UPPER, self, L2, region, of)

    def _refuse_large(self, network: Network) -> None:
        columns, largest = math.prod(network.source), 0
        for k, node in enumerate(network.nodes, start=1):
            largest = max(largest, columns * math.prod(network.shape_into(k)))
            columns += 0 if node.is_identity else math.prod(node.target)
        largest = max(largest, columns * math.prod(network.target))
        if largest > self.limit:
            raise TooLargeError(
                f"The derivatives of a value have {largest} entries, the limit is {self.limit}; raise it or use Local."
            )

    def _one(self, found: MeasuredNetwork, region: Region) -> Tensor:
        sweep = _Sweep(found, region)
        propagate_ranges(found, region, True, False, sweep.refine)
        return log_up(sweep.gain)

    def __str__(self) -> str:
        return "derivative at the center"
