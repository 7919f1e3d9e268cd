"""Where every intermediate value of a network can lie while the input stays in a region."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.measured_network import Affine, Measured, MeasuredNetwork, measure_network
from lipkit.errors import RegionError, ShapeError
from lipkit.linops import Shape
from lipkit.linops.queries.row_norms import row_norms
from lipkit.norms import dual_exponent
from lipkit.regions import Ball, Box, Region
from lipkit.rounding.float64 import gamma, norm_up, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.trace import Network, Reach

# Called with k, what is known of z_k, and y_0, ..., y_(k-1); answers with what else is known of z_k.
Refine = Callable[[int, Reach, list[Reach]], Reach]
# A handful of roundings, and what products may lose to underflow.
_ULPS = ROUNDINGS_16
_UNDERFLOW = 1e-290


class Ranges(ABC):
    """A way to bound z_1, ..., z_(K+1) on a region; hyper-parameters are fields."""

    @final
    def __call__(self, network: Network, region: Region) -> list[Reach]:
        """A set for every row of the network, in order, the last one for its output."""
        return self.prepare(network, every=True)(region)

    @abstractmethod
    def prepare(self, network: Network, every: bool = False) -> Callable[[Region], list[Reach]]:
        """The same for many regions: what does not depend on the region is computed once.

        Values inside a linear region matter to nobody; without `every` they are left unbounded.
        """


@final
@dataclass(frozen=True)
class Intervals(Ranges):
    """Interval arithmetic, and with `balls` also Euclidean balls, both through every row; the better one counts.

        z = A y + b:   A m + b +- |A| w                 from m - w <= y <= m + w,
                       (A c + b)_i +- ||A_i||_2 r       from ||y - c||_2 <= r (with `balls`),
                       (A x_0 + b)_i +- ||A_i||_q eps   from an input ball ||x - x_0||_p <= eps, 1/p + 1/q = 1,
        ||z - A c - b||_2 <= min(||A||_2 r, the length of the widths),

    summed over the blocks of a row; nonlinear nodes answer with their own `reach`. Without `balls` this is plain
    interval bound propagation. Products of operators too large to write out use |A B| <= |A| |B|.

    Guarantee: contains every value of real arithmetic; all rounding is outward, no random number takes part.
    Cost: five applications of every operator; with `balls` one norm of each operator besides, for all regions together.
    Reference: Gowal et al. 2018 for intervals.
    """

    balls: bool = True

    def prepare(self, network: Network, every: bool = False) -> Callable[[Region], list[Reach]]:
        found = measure_network(network)
        return lambda region: propagate_ranges(found, region, self.balls, every, lambda _k, reach, _before: reach)

    def __str__(self) -> str:
        return "intervals and balls" if self.balls else "intervals"


def ranges(network: Network, region: Region, method: Ranges | None = None) -> list[Reach]:
    """Where z_1, ..., z_(K+1) can lie for inputs in `region`; by default `Intervals()`."""
    return (Intervals() if method is None else method)(network, region)


def propagate_ranges(found: MeasuredNetwork, region: Region, balls: bool, every: bool, refine: Refine) -> list[Reach]:
    """The fold behind every method of ranges: rows in order, each refined before its node is applied."""
    with torch.no_grad():
        ys = [input_reach(region, found.network.source, found.device)]
        zs: list[Reach] = []
        for k, row in found.fused.items():
            if k in found.inside:
                # An identity: y is z, and no fused row reads it.
                z = _row(row, ys, region, balls=False) if every else _anything(row.shift)
                ys.append(z)
            else:
                z = refine(k, _row(row, ys, region, balls), ys)
                ys += [tighten(found.network.nodes[k - 1].reach(z))] if k < found.network.sink else []
            zs.append(z)
        return zs


def input_reach(region: Region, shape: Shape, device: torch.device) -> Reach:
    """A bounded region of one input as a reach; refuses others."""
    match region:
        case Ball(center, radius, p):
            _check_shape(tuple(center.shape), shape)
            center = center.detach().to(device, torch.float64)
            # An l_p ball lies in the l2 ball with d^(1/2 - 1/p) times its radius, if p > 2.
            factor = max(1, center.numel()) ** max(0.0, 0.5 - 1 / p) * (1 + _ULPS)
            low, high = _around(center, torch.full_like(center, radius))
            return Reach(low, high, center, center.new_tensor(radius * factor))
        case Box(low, high):
            _check_shape(tuple(low.shape), shape)
            low, high = (end.detach().to(device, torch.float64) for end in (low, high))
            if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
                raise RegionError("Ranges need a bounded box, this one has infinite ends; give finite ones.")
            center, width = middle(low, high)
            return Reach(low, high, center, norm_up(width.flatten(), 1))
        case _:
            raise RegionError(f"Ranges need a bounded region, got {region}; give a Ball or a Box.")


def _check_shape(given: Shape, shape: Shape) -> None:
    if given != shape:
        raise ShapeError(f"The network takes one input of shape {shape}, the region has shape {given}.")


def middle(low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """(m, w) with m - w <= low and high <= m + w in real arithmetic; (0, inf) where an end is infinite."""
    finite = torch.isfinite(low) & torch.isfinite(high)
    center = torch.where(finite, low / 2 + high / 2, 0.0)
    width = torch.maximum(high - center, center - low) * (1 + _ULPS)
    return center, torch.where(finite, width, torch.inf)


def tighten(reach: Reach) -> Reach:
    """The same set with its box cut to the ball, and its ball to the box."""
    low, high = _around(reach.center, reach.radius.expand(reach.center.shape))
    low, high = torch.maximum(low, reach.low), torch.minimum(high, reach.high)
    far = torch.maximum(high - reach.center, reach.center - low).clamp(min=0) * (1 + _ULPS)
    return Reach(low, high, reach.center, torch.minimum(reach.radius, norm_up(far.flatten(), 1)))


def intersect(z: Reach, other: Reach) -> Reach:
    """Both reaches at once: the smaller of the boxes, entry by entry, and the smaller ball."""
    ball = z if bool(z.radius < other.radius) else other
    low, high = torch.maximum(z.low, other.low), torch.minimum(z.high, other.high)
    return tighten(Reach(low, high, ball.center, ball.radius))


def include(z: Reach, point: Float64[Tensor, "..."]) -> Reach:
    """The reach, made so large that a point lies in it as well."""
    radius = torch.maximum(z.radius, norm_up((point - z.center).flatten(), 1) * (1 + _ULPS))
    return Reach(torch.minimum(z.low, point), torch.maximum(z.high, point), z.center, radius)


def farthest(region: Region, rows: Float64[Tensor, "rows entries"]) -> Float64[Tensor, " rows"]:
    """The largest |<row, x - center>| on a bounded region, for each row."""
    if isinstance(region, Ball):
        return vector_norms(rows, dual_exponent(region.p)) * region.radius
    assert isinstance(region, Box), "ranges refuse other regions"
    width = middle(*(end.detach().to(rows).flatten() for end in (region.low, region.high)))[1]
    return rows.abs() @ width * (1 + gamma(len(width) + 4))


def _anything(like: Tensor) -> Reach:
    end = torch.full_like(like, math.inf)
    return Reach(-end, end, torch.zeros_like(like), end.new_tensor(math.inf))


def _around(center: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    slack = _ULPS * (center.abs() + width)
    return center - width - slack, center + width + slack


def _row(row: Affine, ys: list[Reach], region: Region, balls: bool) -> Reach:
    """sum_j A_j y_j + b, as a box around the image of the boxes and one around the image of the centers."""
    slack = row.slack()
    at_mid, at_center = row.shift, row.shift
    off_center = slack * row.shift.abs() + row.error
    near_mid, near_center = off_center + _UNDERFLOW, off_center + _UNDERFLOW
    radius = row.shift.new_zeros(())
    for j, block in row.blocks.items():
        y = ys[j]
        mid, width = middle(y.low, y.high)
        far = torch.maximum(y.high - y.center, y.center - y.low).clamp(min=0) * (1 + _ULPS)
        images = block.op.apply(torch.stack([mid, y.center]))
        spreads = block.tight.apply(torch.stack([width, far]))
        sizes = block.stages.apply(torch.stack([mid.abs() + width, y.center.abs() + far, y.center.abs()]))
        at_mid, at_center = at_mid + images[0], at_center + images[1]
        near_mid = near_mid + spreads[0] + slack * sizes[0]
        moved = torch.minimum(_no_nan(spreads[1]), _by_ball(block, j, y, region, balls))
        near_center = near_center + moved + slack * sizes[1]
        off_center = off_center + slack * sizes[2]
        radius = radius + (block.norm * y.radius if balls else torch.inf)
    inflate = 1 + 4 * slack + _ULPS
    low, high = _around(at_mid, _no_nan(near_mid * inflate))
    other_low, other_high = _around(at_center, _no_nan(near_center * inflate))
    low, high = torch.maximum(low, other_low), torch.minimum(high, other_high)
    radius = _no_nan((radius + norm_up(off_center.flatten(), 1)) * inflate)
    return tighten(Reach(low, high, at_center, radius))


def _by_ball(block: Measured, j: int, y: Reach, region: Region, balls: bool) -> Tensor:
    """How far A y can lie from A c, entry by entry, because y lies in a ball around c."""
    if j == 0 and isinstance(region, Ball):
        rows = block.rows if region.p == 2 else row_norms(block.op, dual_exponent(region.p))
        return rows.to(y.low.device) * region.radius * (1 + _ULPS)
    if not balls:
        return torch.full(block.op.out_shape, torch.inf, dtype=torch.float64, device=y.low.device)
    return block.rows.to(y.low.device) * y.radius * (1 + _ULPS)


def _no_nan(width: Tensor) -> Tensor:
    """Zero times an infinite width says nothing."""
    return torch.where(torch.isnan(width), math.inf, width)


def intervals_of(network: Network) -> Callable[[Region, Tensor], tuple[float, float]]:
    """A function that bounds <v, f(x)> over a region by intervals alone, for one v like the output.

    Guarantee: contains every value. Cost: five applications of every operator.
    """
    reaches = Intervals(balls=False).prepare(network)

    def on(region: Region, direction: Tensor) -> tuple[float, float]:
        both = highest_in_reach(torch.stack([direction, -direction]), reaches(region)[-1])
        high, low = (both + gamma(8) * both.abs()).tolist()
        return -low, high

    return on


def highest_in_box(weight: Tensor, y: Reach) -> Tensor:
    """An upper bound of <weight, y> on the box of a reach, for each weight of a batch."""
    mid, width = middle(y.low, y.high)
    slack = gamma(mid.numel() + 16)
    return dot(weight, mid) + dot(weight.abs(), width + slack * (mid.abs() + width)) * (1 + slack)


def highest_in_reach(weight: Tensor, y: Reach) -> Tensor:
    """An upper bound of <weight, y> on a reach, by its box or its ball, for each weight of a batch."""
    slack = gamma(y.center.numel() + 16)
    inside = dot(weight, y.center) + slack * dot(weight.abs(), y.center.abs())
    by_ball = inside + vector_norms(weight.flatten(1), 2.0) * y.radius * (1 + slack)
    by_box = highest_in_box(weight, y)
    return torch.where(by_ball < by_box, by_ball, by_box)


def dot(batch: Float64[Tensor, "batch ..."], one: Float64[Tensor, "..."]) -> Float64[Tensor, " batch"]:
    """<w, y> for each w of a batch."""
    return batch.flatten(1) @ one.flatten()
