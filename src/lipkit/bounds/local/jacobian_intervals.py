"""Intervals that contain every difference quotient of a network of pointwise nodes, entry by entry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork
from lipkit.bounds.local.ranges import middle
from lipkit.errors import NonFiniteError, UnsupportedError
from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.trace import Reach
from lipkit.trace.nodes import Pointwise

_ULPS = ROUNDINGS_16
# More than products may lose to underflow.
_UNDERFLOW = 1e-290


@final
@dataclass(frozen=True, eq=False)
class Span:
    """mid - width <= v <= mid + width entry by entry, for a batch of vectors v; the width is rounded up."""

    mid: Float64[Tensor, "batch ..."]
    width: Float64[Tensor, "batch ..."]

    @property
    def ends(self) -> tuple[Float64[Tensor, "batch ..."], Float64[Tensor, "batch ..."]]:
        """The lower and the upper end, rounded outward."""
        slack = _ULPS * (self.mid.abs() + self.width)
        return self.mid - self.width - slack, self.mid + self.width + slack

    def plus(self, other: "Span") -> "Span":
        """The span of a sum."""
        mid = self.mid + other.mid
        return Span(mid, (self.width + other.width) * (1 + _ULPS) + _ULPS * (self.mid.abs() + other.mid.abs()))


Slopes = Mapping[int, tuple[Float64[Tensor, "..."], Float64[Tensor, "..."]]]


def slopes_of(found: MeasuredNetwork, zs: list[Reach]) -> Slopes:
    """(alpha, beta) of every node that is not inside a linear region, on its range; refuses nodes of other kinds."""
    slopes: dict[int, tuple[Tensor, Tensor]] = {}
    for k, node in enumerate(found.network.nodes, start=1):
        if k in found.inside:
            continue
        if not isinstance(node, Pointwise):
            raise UnsupportedError(
                f"{found.network.origin(k)} is no pointwise function, which an interval Jacobian needs; "
                "use Local, which takes nodes of every kind."
            )
        alpha, beta = node.activation.slopes(zs[k - 1].low, zs[k - 1].high)
        if not bool(torch.isfinite(alpha).all() and torch.isfinite(beta).all()):
            raise NonFiniteError(f"{found.network.origin(k)} has unbounded slopes on the region; give a smaller one.")
        slopes[k] = (alpha.expand(node.shape), beta.expand(node.shape))
    return slopes


def scaled(span: Span, alpha: Float64[Tensor, "..."], beta: Float64[Tensor, "..."]) -> Span:
    """The span of d v, d in [alpha, beta], as the smallest interval that holds all products."""
    low, high = span.ends
    products = (alpha * low, alpha * high, beta * low, beta * high)
    least = torch.minimum(torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3]))
    most = torch.maximum(torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3]))
    mid, width = middle(least, most)
    return Span(mid, width + _ULPS * torch.maximum(least.abs(), most.abs()) + _UNDERFLOW)


def backward(
    found: MeasuredNetwork, slopes: Slopes, sink: int, start: Float64[Tensor, "batch ..."]
) -> tuple[Span, dict[int, Span]]:
    """Spans of <start, dz_sink/dx> and, by node j, of <start, dz_sink/dy_j>, from the sink to the input.

    Cost: three adjoints of every operator for the batch.
    """
    on_y: dict[int, Span] = {}
    _back(found.fused[sink], Span(start, torch.zeros_like(start)), on_y)
    for j in range(sink - 1, 0, -1):
        if j in on_y:
            _back(found.fused[j], scaled(on_y[j], *slopes[j]), on_y)
    at_input = on_y.pop(0, None)
    if at_input is None:
        nothing = start.new_zeros((len(start), *found.network.source))
        at_input = Span(nothing, nothing)
    return at_input, on_y


def forward(found: MeasuredNetwork, slopes: Slopes, start: Float64[Tensor, "batch ..."]) -> Span:
    """Spans of (dz_(K+1)/dx) start, from the input to the output. Cost: three applications of every operator."""
    ys: dict[int, Span] = {0: Span(start, torch.zeros_like(start))}
    sink = found.network.sink
    for k, row in found.fused.items():
        if k in found.inside:
            continue
        shape = (len(start), *found.network.shape_into(k))
        z = Span(start.new_zeros(shape), start.new_zeros(shape))
        for j, block in row.blocks.items():
            image = block.op.apply(ys[j].mid)
            lost = row.slack() * block.stages.apply(ys[j].mid.abs() + ys[j].width)
            z = z.plus(Span(image, _above(block.tight.apply(ys[j].width) + lost, row)))
        if k == sink:
            return z
        ys[k] = scaled(z, *slopes[k])
    raise AssertionError("a network ends in its output row")


def _back(row: Affine, on_z: Span, on_y: dict[int, Span]) -> None:
    for i, block in row.blocks.items():
        image = block.op.adjoint(on_z.mid)
        lost = row.slack() * block.stages.adjoint(on_z.mid.abs() + on_z.width)
        term = Span(image, _above(block.tight.adjoint(on_z.width) + lost, row))
        on_y[i] = on_y[i].plus(term) if i in on_y else term


def _above(width: Tensor, row: Affine) -> Tensor:
    """A width >= 0 evaluated by the operators of a row, never below its true value."""
    return width * (1 + 4 * row.slack()) + _UNDERFLOW
