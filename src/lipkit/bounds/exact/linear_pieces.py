"""The exact local constant of a piecewise linear network: its linear pieces, the most promising first."""

import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.exact.polytopes import HalfSpaces, error_of, input_span, piece_span, row_span
from lipkit.bounds.local.fast_lip import FastLip, largest_norm
from lipkit.bounds.local.jacobian_intervals import Span, slopes_of
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Ranges, input_reach
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.lower.difference_quotients import along, best_pair, lower_bound, prover
from lipkit.bounds.lower.sampling import scale_of, steepest
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.regions import Region
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import PiecewiseLinear, Pointwise

# Two sides that agree to this are one number.
_AGREE = 1e-9


_Piece = tuple[float, float, float, float]


@final
@dataclass(frozen=True, eq=False)
class _Plan:
    """A node: its straight pieces (left, right, slope, shift), the shifts of the entries that can only be on one of
    them, and the entries that can be on several."""

    pieces: tuple[_Piece, ...]
    shifts: Tensor
    undecided: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class _Partial:
    """Decisions up to a neuron: slopes of all nodes (points where decided), shifts of decided entries of node `at`,
    the values before it as affine functions, what is undecided in it, and the cell of the decisions."""

    slopes: dict[int, tuple[Tensor, Tensor]]
    values: dict[int, Span]
    at: int
    shifts: Tensor
    undecided: tuple[int, ...]
    cell: HalfSpaces


@final
@dataclass(frozen=True)
class LinearPieces(RegionMethod):
    """The constant of a network of piecewise linear activations on a box or a ball, by best-first branch and bound.

    Neurons are decided one by one, in order, so that the next pre-activation is an affine function of x on the cell of
    the decisions before; the pieces of its activation that the cell cannot reach are proven empty by linear duality,
        max_{x in cell} w.x <= max_{x in region} (w + sum_i m_i w_i).x + sum_i m_i b_i   for any m >= 0,
    with m proposed by a solver that is not trusted. A partial decision is bounded by its interval Jacobian (`FastLip`);
    the first complete one that is the best of all open ones has the largest gradient.

    Guarantee: never below the constant, in any metric `FastLip` has, rounding counted; EXACT where two points of the
    winning cell prove the same number to 1e-9, otherwise UPPER with that as `lower`. After `cells` cells the best open
    one is returned: UPPER. Cost: two linear programs a cell; exponential in the number of unstable neurons, of which a
    few tens are affordable. On l2 balls emptiness is proven on the bounding box and the ball apart, so that more cells
    stay than there are. Reference: the problem is that of LipMIP, Jordan and Dimakis 2020; the method is ours.
    """

    metric: Metric = L2
    slopes: Ranges = field(default_factory=Relaxation)
    cells: int = 2000

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise ArgumentError(f"LinearPieces.cells must be at least one, got {self.cells}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        if each_sample(region, network.source) is not None:
            raise ShapeError("LinearPieces takes the region of one input at a time; call it for each sample.")
        with torch.no_grad():
            value, best = self._search(measure_network(network), region, network)
        upper = Bound(value, Kind.UPPER, self, self.metric, region)
        if best is None:
            return upper
        below = self._proven(network, region, best)
        if below is None:
            return upper
        agree = float(value) - float(below.log_value) <= _AGREE
        return replace(upper, kind=Kind.EXACT if agree else Kind.UPPER, lower=below, state=below.state)

    def _search(self, found: MeasuredNetwork, region: Region, network: Network) -> tuple[Tensor, _Partial | None]:
        reach = input_reach(region, network.source, found.device)
        zs = self.slopes(network, region)
        plans = {k: _plan(found, k, zs[k - 1]) for k in range(1, network.sink) if k not in found.inside}
        nothing = reach.center.flatten()[:0]
        cell = HalfSpaces(region, reach, nothing.reshape(0, reach.center.numel()), nothing)
        values = {0: input_span(found)}
        first = _advance(found, plans, _Partial(dict(slopes_of(found, zs)), values, 0, nothing, (), cell))
        count = itertools.count()
        queue = [(-float(self._upper(found, first)), next(count), first)]
        for _ in range(self.cells):
            bound, _, partial = queue[0]
            if partial.at == found.network.sink:
                return reach.center.new_tensor(-bound), partial
            heapq.heappop(queue)
            for child in _children(found, plans, partial):
                upper = min(-bound, float(self._upper(found, child)))
                heapq.heappush(queue, (-upper, next(count), child))
        return reach.center.new_tensor(-queue[0][0]), None

    def _upper(self, found: MeasuredNetwork, partial: _Partial) -> Tensor:
        low, high = FastLip(self.metric).intervals(found, partial.slopes)
        return largest_norm(low, high, self.metric)

    def _proven(self, network: Network, region: Region, best: _Partial) -> Bound | None:
        point = best.cell.point()
        if point is None:
            return None
        x = point.reshape(1, *network.source)
        direction = steepest(network, x, self.metric)[1]
        first, second = along(x, direction, scale_of(region, x))
        pair = best_pair(network.detach(), region, first, second, prover(network, self.metric), self.metric)
        found = lower_bound([pair], region, self.metric, self, Scope.WHOLE)
        return found if found.kind is Kind.LOWER else None

    def __str__(self) -> str:
        return "linear pieces, best first"


def _plan(found: MeasuredNetwork, k: int, z: Reach) -> _Plan:
    node = found.network.nodes[k - 1]
    if node.is_identity:
        return _Plan(((-math.inf, math.inf, 1.0, 0.0),), torch.zeros_like(z.low), ())
    f = node.activation if isinstance(node, Pointwise) else None
    if not isinstance(f, PiecewiseLinear) or any(isinstance(g, Tensor) and g.numel() > 1 for g in f.gradients):
        raise UnsupportedError(
            f"{found.network.origin(k)} is not made of straight pieces that all entries share; "
            "use Condensed or Local, which bound from above only."
        )
    pieces = _pieces(f)
    meets = torch.stack([(z.low <= right) & (z.high >= left) for left, right, _, _ in pieces])
    shifts = torch.zeros_like(z.low)
    for (_, _, _, shift), here in zip(pieces, meets, strict=True):
        shifts = torch.where(here, shift, shifts)
    undecided = (meets.sum(0) > 1).flatten().nonzero().flatten().tolist()
    return _Plan(pieces, shifts, tuple(undecided))


def _pieces(f: PiecewiseLinear) -> tuple[_Piece, ...]:
    """(left, right, slope, shift) of every straight piece: f(z) = slope z + shift between left and right."""
    ends = (-math.inf, *f.knots, math.inf)
    found: list[_Piece] = []
    for left, right, gradient in zip(ends[:-1], ends[1:], f.gradients, strict=True):
        slope, knot = float(gradient), left if math.isfinite(left) else right
        value = float(f(torch.tensor(knot, dtype=torch.float64)))
        found.append((left, right, slope, value - slope * knot))
    return tuple(found)


def _advance(found: MeasuredNetwork, plans: dict[int, _Plan], partial: _Partial) -> _Partial:
    """Go on to the next node with an undecided neuron, or to the output, carrying decided nodes along."""
    while not partial.undecided:
        values, at = dict(partial.values), partial.at
        if at:
            values[at] = piece_span(row_span(found.fused[at], values), partial.slopes[at][0], partial.shifts)
        at = next(k for k in range(at + 1, found.network.sink + 1) if k not in found.inside)
        if at == found.network.sink:
            return replace(partial, values=values, at=at)
        partial = replace(partial, values=values, at=at, shifts=plans[at].shifts, undecided=plans[at].undecided)
    return partial


def _children(found: MeasuredNetwork, plans: dict[int, _Plan], partial: _Partial) -> list[_Partial]:
    """The decisions for the next neuron that are not proven impossible."""
    k, (i, *rest) = partial.at, partial.undecided
    z = row_span(found.fused[k], partial.values)
    error = error_of(z, partial.cell.reach)[i]
    normal, offset = z.mid[:-1].flatten(1)[:, i], z.mid[-1].flatten()[i]
    high = partial.cell.highest(normal, offset + error)
    low = -partial.cell.highest(-normal, error - offset)
    children: list[_Partial] = []
    for left, right, slope, shift in plans[k].pieces:
        if left > high or right < low:
            continue
        cell = partial.cell
        if left > low:
            cell = cell.cut(normal, _up(offset + error - left))
        if right < high:
            cell = cell.cut(-normal, _up(error - offset + right))
        decided = {**partial.slopes, k: (_put(partial.slopes[k][0], i, slope), _put(partial.slopes[k][1], i, slope))}
        shifts = _put(partial.shifts, i, shift)
        child = replace(partial, slopes=decided, shifts=shifts, undecided=tuple(rest), cell=cell)
        children.append(_advance(found, plans, child))
    return children


def _put(values: Tensor, at: int, value: float) -> Tensor:
    flat = values.flatten().clone()
    flat[at] = value
    return flat.reshape(values.shape)


def _up(value: Tensor) -> Tensor:
    return value + ROUNDINGS_8 * value.abs()
