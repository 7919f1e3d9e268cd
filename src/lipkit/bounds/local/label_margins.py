"""The margins z_y - z_j of a classifier on a region: how small they get, and how fast they change."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.condensed import largest_row_sum
from lipkit.bounds.local.jacobian_intervals import Slopes, Span, backward, slopes_of
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.local.small_gain import small_gain
from lipkit.bounds.local.uncertain_slopes import Uncertain, uncertain
from lipkit.errors import ShapeError
from lipkit.norms import dual_exponent
from lipkit.regions import Ball
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace import Network, Reach

# Uncertain slopes up to which the multipliers are optimised; beyond, they have a closed form up to their scale.
_OPTIMISED = 128
# Uncertain slopes beyond which their matrices take minutes and gigabytes.
_MOST = 3000
# How close to the best the optimised multipliers come.
_RTOL = 1e-2


@final
class LabelMargins:
    """The margins z_y - z_j of one network over its other classes, on ball after ball.

    The network is measured once, for all balls and labels. Cost: bookkeeping.
    """

    def __init__(self, network: Network, relaxation: Relaxation) -> None:
        if len(network.target) != 1 or network.target[0] < 2:
            raise ShapeError(
                f"Margins need one axis of at least two outputs, got outputs of shape {network.target}; give a model "
                "with a single score as `attacks.TwoClasses(model)`."
            )
        self._found = measure_network(network)
        self._on = relaxation.prepare_functionals(self._found)

    def on(self, ball: Ball, label: int) -> "MarginsOnBall":
        """The margins of `label` on a ball. Cost: that of the relaxation."""
        classes = self._found.network.target[0]
        others = [j for j in range(classes) if j != label]
        units = torch.eye(classes, dtype=torch.float64, device=self._found.device)
        directions = units[label] - units[others]
        reaches, least = self._on(ball, directions)
        return MarginsOnBall(self._found, ball, directions, tuple(others), least, reaches)


@final
@dataclass(frozen=True, eq=False)
class MarginsOnBall:
    """z_y - z_j on a ball, for every class j in `others`.

    Guarantee: `least` is never above the smallest value of each margin on the ball, and the constants are upper bounds
    of its Lipschitz constant there, in the norm of the ball; all rounding is counted, and nothing is drawn.
    """

    found: MeasuredNetwork
    ball: Ball
    directions: Float64[Tensor, "others classes"]
    others: tuple[int, ...]
    least: Float64[Tensor, " others"]
    reaches: list[Reach]

    @cached_property
    def _slopes(self) -> Slopes:
        return slopes_of(self.found, self.reaches)

    @cached_property
    def _intervals(self) -> tuple[Float64[Tensor, "others inputs"], Float64[Tensor, "others inputs"]]:
        """An interval for each derivative of each margin, from the output backward."""
        low, high = backward(self.found, self._slopes, self.found.network.sink, self.directions)[0].ends
        return low.flatten(1), high.flatten(1)

    def by_entries(self) -> Float64[Tensor, " others"]:
        """The dual norm of the largest size of every derivative (`FastLip`). Cost: three adjoints for each class."""
        low, high = self._intervals
        return vector_norms(torch.maximum(low.abs(), high.abs()), dual_exponent(self.ball.p))

    @cached_property
    def _reduced(self) -> Uncertain:
        return uncertain(self.found, self._slopes, _MOST, self.directions)

    def by_slopes(self, place: int) -> Float64[Tensor, ""]:
        """The constant of the margin over `others[place]` through the slopes that are uncertain (`Condensed`).

        Cost: three adjoints for each uncertain slope, once; then a factorisation of that side for each margin. Refuses
        more than 3000 uncertain slopes.
        """
        whole = self._reduced
        one = replace(whole, c=_row(whole.c, place), g=_row(whole.g, place))
        width = one.width()
        slack = ROUNDINGS_8 * (one.c.mid.abs() + width)
        low, high = (end[place : place + 1] for end in self._intervals)
        low = torch.maximum(low, one.c.mid - width - slack)
        high = torch.minimum(high, one.c.mid + width + slack)
        (found,) = vector_norms(torch.maximum(low.abs(), high.abs()), dual_exponent(self.ball.p))
        count = len(one.spread)
        if count and self.ball.p == 2:
            return torch.minimum(found, small_gain(one, _RTOL if count <= _OPTIMISED else None))
        if count and math.isinf(self.ball.p):
            return torch.minimum(found, largest_row_sum(one, low, high))
        return found


def _row(span: Span, place: int) -> Span:
    return Span(span.mid[place : place + 1], span.width[place : place + 1])
