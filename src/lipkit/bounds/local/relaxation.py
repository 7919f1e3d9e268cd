"""Linear bounds of intermediate values, carried back to the input."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.bounds.local.activation_lines import Lines, lines
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Ranges, dot, highest_in_box, highest_in_reach, propagate_ranges, tighten
from lipkit.errors import ArgumentError
from lipkit.linops import Compose, LinearOperator, Scaled, StatedRounding, Sum, Sweep
from lipkit.norms import dual_exponent
from lipkit.regions import Ball, Region
from lipkit.rounding.float64 import gamma, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import Pointwise

# More than 10^17 times what one product can lose below the smallest numbers, 2^-1075.
VANISHED = 1e-305


def image_and_mass(op: LinearOperator, size: Tensor) -> tuple[Tensor, Tensor]:
    """D |x| and the sum of all values on the way there, for an operator D >= 0 made of parts.

    A coefficient that is carried back through the parts loses up to 2^-1075 in every product, at every stage; paired
    with the values that the rest of the way makes of |x|, that is at most `VANISHED` times the mass.
    """
    match op:
        case Compose(outer, inner):
            middle, before = image_and_mass(inner, size)
            image, after = image_and_mass(outer, middle)
            return image, before + after
        case Sum(left, right):
            (one, first), (other, second) = image_and_mass(left, size), image_and_mass(right, size)
            return one + other, first + second
        case Scaled(factor, inner):
            image, mass = image_and_mass(inner, size)
            image = factor * image
            return image, mass + image.sum()
        case StatedRounding(inner):
            return image_and_mass(inner, size)
        case Sweep(edges, source, sink):
            values, total = {source: size}, size.new_zeros(())
            for k, j, edge in edges:
                image, mass = image_and_mass(edge, values[j])
                values[k] = values[k] + image if k in values else image
                total = total + mass
            return values[sink], total
        case _:
            image = op.apply(size)
            return image, size.sum() + image.sum()


# Rows carried back together stay below this many entries at the widest place.
_CHUNK_ENTRIES = 2**23


@final
@dataclass(frozen=True)
class Relaxation(Ranges):
    """Ranges by linear relaxation, carried back from each value to the input, intersected with `Intervals()`.

    Every activation lies between two lines, a z + c <= f(z) <= a' z + c' on its range. To bound v.z_k from above,
    substitute row by row, from k down to the input: z = A y + b, then y by its upper line where its coefficient is
    positive and its lower line where it is negative. What remains is linear in x and is maximised over the region:
        v.z_k <= lambda.x_0 + eps ||lambda||_q + const  on ||x - x_0||_p <= eps, 1/p + 1/q = 1.
    Lines are those of least area (ReLU: the triangle). A node that is no pointwise function is replaced by its reach.

    Guarantee: contains every value. The coefficients are floating-point numbers, and what substituting them inexactly
    can change is bounded through the ranges of the values they multiply, and added.
    Cost: for each value that can still gain (its activation is not linear on the interval) two sweeps of adjoints; of
    each node at most `limit` values, the widest first.
    Reference: Weng et al. 2018 (Fast-Lin), Zhang et al. 2018 (CROWN); the grid of lines for arbitrary activations and
    the rounding terms are ours.
    """

    balls: bool = True
    limit: int = 2**14

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ArgumentError(f"Relaxation.limit must be at least 1, got {self.limit}.")

    def prepare(self, network: Network, every: bool = False) -> Callable[[Region], list[Reach]]:
        found = measure_network(network)

        def on(region: Region) -> list[Reach]:
            backward = _Backward(found, region, {}, {}, {})
            return propagate_ranges(found, region, self.balls, every, lambda k, z, ys: self._refine(backward, k, z, ys))

        return on

    def prepare_functionals(
        self, found: MeasuredNetwork
    ) -> Callable[[Region, Float64[Tensor, "count *shape"]], tuple[list[Reach], Float64[Tensor, " count"]]]:
        """A function that gives, on a region, the ranges and a lower bound of <v, f(x)> for each of several v.

        Guarantee: contains every value. Cost: the ranges of all values but the output, and one sweep for each v.
        """
        sink = found.network.sink

        def on(region: Region, directions: Tensor) -> tuple[list[Reach], Tensor]:
            backward = _Backward(found, region, {}, {}, {})
            least: list[Tensor] = []

            def refine(k: int, z: Reach, ys: list[Reach]) -> Reach:
                if k < sink:
                    return self._refine(backward, k, z, ys)
                plain = highest_in_reach(-directions, z)
                plain = plain + gamma(math.prod(found.network.target) + 16) * plain.abs()
                least.append(-torch.minimum(backward.highest(k, -directions, ys), plain))
                return z

            return propagate_ranges(found, region, self.balls, False, refine), least[0]

        return on

    def _refine(self, backward: "_Backward", k: int, z: Reach, ys: list[Reach]) -> Reach:
        wanted = self._rows_to_refine(backward.found.network, k, z)
        if k > 1 and len(wanted):
            low, high = z.low.flatten().clone(), z.high.flatten().clone()
            for chunk in backward.chunks(k, wanted):
                below, above = backward.bounds(k, chunk, ys)
                low[chunk] = torch.maximum(low[chunk], below)
                high[chunk] = torch.minimum(high[chunk], above)
            z = tighten(Reach(low.reshape(z.low.shape), high.reshape(z.high.shape), z.center, z.radius))
        backward.learn(k, z)
        return z

    def _rows_to_refine(self, network: Network, k: int, z: Reach) -> Int64[Tensor, " rows"]:
        width = (z.high - z.low).flatten()
        open_ = width > 0
        if k < network.sink:
            node = network.nodes[k - 1]
            if isinstance(node, Pointwise):
                alpha, beta = node.activation.slopes(z.low, z.high)
                open_ = open_ & (alpha < beta).expand(z.low.shape).flatten()
        found = open_.nonzero().flatten()
        return found if len(found) <= self.limit else found[width[found].argsort(descending=True)[: self.limit]]

    def __str__(self) -> str:
        return "linear relaxation"


def functional(network: Network, balls: bool) -> Callable[[Region, Tensor], tuple[float, float]]:
    """A function that bounds <v, f(x)> over a region, by intervals and a linear relaxation, for one v like the output.

    Guarantee: contains every value. Cost: two sweeps of adjoints, however many outputs there are; values before the
    output are left to intervals, with `balls` also to norms, which is enough for tiny regions.
    """
    found = measure_network(network)

    def on(region: Region, direction: Tensor) -> tuple[float, float]:
        backward = _Backward(found, region, {}, {}, {})
        both = torch.stack([direction, -direction])
        ends: list[float] = []

        def refine(k: int, z: Reach, ys: list[Reach]) -> Reach:
            backward.learn(k, z)
            if k == network.sink:
                plain = highest_in_reach(both, z)
                plain = plain + gamma(8) * plain.abs()
                ends.extend(torch.minimum(backward.highest(k, both, ys), plain).tolist())
            return z

        propagate_ranges(found, region, balls, False, refine)
        high, low = ends
        return -low, high

    return on


@final
@dataclass(frozen=True, eq=False)
class _Backward:
    """Substitution from a row back to the input, with what has been learnt of the rows before."""

    found: MeasuredNetwork
    region: Region
    between: dict[int, Lines]
    sizes: dict[int, Tensor]
    terms: dict[int, tuple[Tensor, Tensor]]

    def learn(self, k: int, z: Reach) -> None:
        """Remember the lines of node k on its range, where it has any."""
        node = self.found.network.nodes[k - 1] if k < self.found.network.sink else None
        if isinstance(node, Pointwise) and not node.is_identity:
            self.between[k], self.sizes[k] = lines(node.activation, z.low, z.high), _size(z)

    def chunks(self, k: int, rows: Int64[Tensor, " rows"]) -> Iterator[Int64[Tensor, " some"]]:
        """The rows in groups small enough for memory."""
        network = self.found.network
        widest = max(math.prod(network.shape_into(j)) + math.prod(network.shape_of(j - 1)) for j in range(1, k + 1))
        yield from rows.split(max(1, _CHUNK_ENTRIES // (2 * widest)))

    def bounds(self, k: int, rows: Int64[Tensor, " some"], ys: list[Reach]) -> tuple[Tensor, Tensor]:
        """Bounds of the entries `rows` of z_k, both sides in one batch."""
        shape = self.found.network.shape_into(k)
        unit = torch.zeros(2 * len(rows), math.prod(shape), dtype=torch.float64, device=self.found.device)
        at = torch.arange(len(rows), device=unit.device)
        unit[at, rows], unit[at + len(rows), rows] = 1.0, -1.0
        upper = self.highest(k, unit.reshape(-1, *shape), ys)
        return -upper[len(rows) :], upper[: len(rows)]

    def highest(self, k: int, start: Tensor, ys: list[Reach]) -> Tensor:
        """An upper bound of <start, z_k> for each entry of the batch."""
        total, error = start.new_zeros(len(start)), start.new_zeros(len(start))
        on_y: dict[int, Tensor] = {}
        on_z = start
        for j in range(k, 0, -1):
            if j < k:
                if j not in on_y:
                    continue
                on_z, shift, lost = self._through(j, on_y.pop(j), ys[j], 4 * k)
                total, error = total + shift, error + lost
            if on_z is None:
                continue
            row = self.found.fused[j]
            total = total + dot(on_z, row.shift)
            for i, block in row.blocks.items():
                term = block.op.adjoint(on_z)
                on_y[i] = on_y[i] + term if i in on_y else term
            # Roundings of adjoints, of adding up terms, and of the inner product with the bias; products that vanish.
            slack = row.slack(on_z[0].numel() + 4 * k)
            terms, mass = self._largest_terms(j, ys)
            error = error + dot(on_z.abs(), 2 * slack * terms + row.error) + VANISHED * (1 + mass)
        if 0 in on_y:
            total = total + _over(self.region, on_y[0], ys[0])
        counted = total + error * 2 + VANISHED
        counted = counted + gamma(8) * counted.abs()
        return torch.where(torch.isnan(counted), torch.inf, counted)

    def _largest_terms(self, j: int, ys: list[Reach]) -> tuple[Tensor, Tensor]:
        """|b_j| + sum_i |A_ji| |y_i|, what the rounding errors of row j are relative to; and the mass on the way."""
        if j not in self.terms:
            row = self.found.fused[j]
            pairs = [image_and_mass(block.stages, _size(ys[i])) for i, block in row.blocks.items()]
            terms = sum((image for image, _ in pairs), row.shift.abs())
            self.terms[j] = terms, sum((mass for _, mass in pairs), terms.sum())
        return self.terms[j]

    def _through(self, j: int, weight: Tensor, y: Reach, more: int) -> tuple[Tensor | None, Tensor, Tensor]:
        """<weight, y_j> <= <new weight, z_j> + shift, up to an error."""
        slack = gamma(weight[0].numel() + 16 + more)
        node = self.found.network.nodes[j - 1]
        if node.is_identity:
            nothing = weight.new_zeros(len(weight))
            return weight, nothing, nothing
        if j not in self.between:
            size = _size(y)
            return None, highest_in_reach(weight, y), slack * dot(weight.abs(), size) + VANISHED * (1 + size.sum())
        between = self.between[j]
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        shift = dot(up, between.upper_shift) + dot(down, between.lower_shift)
        steepest = torch.maximum(between.upper_slope.abs(), between.lower_slope.abs())
        size = steepest * self.sizes[j] + torch.maximum(between.upper_shift.abs(), between.lower_shift.abs())
        lost = slack * dot(weight.abs(), size) + VANISHED * (1 + self.sizes[j].sum() + size.sum())
        return up * between.upper_slope + down * between.lower_slope, shift, lost


def _over(region: Region, weight: Tensor, x: Reach) -> Tensor:
    """The largest <weight, x> on the region."""
    if not isinstance(region, Ball):
        return highest_in_box(weight, x)
    inside = dot(weight, x.center) + gamma(x.center.numel() + 16) * dot(weight.abs(), x.center.abs())
    return inside + vector_norms(weight.flatten(1), dual_exponent(region.p)) * region.radius * (1 + ROUNDINGS_8)


def _size(reach: Reach) -> Tensor:
    return torch.maximum(reach.low.abs(), reach.high.abs())
