"""The score of a detector as a field: a trained network, mixed with the exact distance to rows."""

from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit import sdf
from lipkit.bound import Bound, Kind
from lipkit.estimators.standardised import Standardise
from lipkit.rounding.float64 import gamma, vector_norms
from lipkit.sdf import Readings


@final
class DetectorField(sdf.Field):
    """f(x) = (1 - share) g(s(x)) + share (margin - |s(x) - nearest row|), s the standardisation, g a network.

    The distance is exact and local; the network is smooth and sees the whole domain.

    Guarantee: K = ((1 - share) K_g + share) max factor of s, with K_g proven by lipkit. Values of `measure` carry the
    rounding of both parts and of s.
    Cost: one capture when it is first used; one evaluation of the network and one search a point.

    Args:
        first: The standardisation.
        network: One output for each standardised point, in float64.
        rows: Standardised rows.
        share: Share of the distance, in [0, 1).
        margin: Value of the second part on a row.
    """

    def __init__(
        self, first: Standardise, network: nn.Module, rows: Float64[Tensor, "n d"], share: float, margin: float
    ) -> None:
        self.first: Standardise = first
        self.network: nn.Module = network
        self.share: float = share
        self.margin: float = margin
        self.points: sdf.Points | None = sdf.Points(rows) if share else None

    @property
    def dim(self) -> int:
        """How many columns a row has."""
        return len(self.first.mean)

    @property
    def bound(self) -> Bound:
        """The constant in units of X; proven when it is first asked for."""
        return self._proven

    @cached_property
    def _captured(self) -> sdf.Network:
        example = torch.zeros(1, self.dim, dtype=torch.float64)
        return sdf.Network(nn.Sequential(self.first, self.network), example)

    @cached_property
    def _proven(self) -> Bound:
        if self.points is None:
            return self._captured.bound
        distance = Bound.from_value(float(self.first.factor.max()), Kind.EXACT, "the distance to the nearest row")
        return self._captured.bound.scale(1 - self.share).sum(distance.scale(self.share))

    def fast(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """Values without a capture, equal up to rounding."""
        inner = self.first(points)
        return self._mixed(self.network(inner).flatten(), inner)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self._mixed(self._captured(points), self.first(points))

    def _mixed(self, values: Tensor, inner: Tensor) -> Tensor:
        if self.points is None:
            return values
        return (1 - self.share) * values + self.share * (self.margin + self.points(inner))

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        smooth = self._captured.measure(points)
        if self.points is None:
            return smooth
        inner = self.first(points)
        near = self.points.measure(inner)
        value = (1 - self.share) * smooth.value + self.share * (self.margin + near.value)
        # Each standardised coordinate is rounded twice, which moves the point; the mixture takes five operations.
        moved = gamma(4) * vector_norms(inner, 2.0)
        size = smooth.value.abs() + near.value.abs() + self.margin
        error = (1 - self.share) * smooth.error + self.share * (near.error + moved) + gamma(8) * size
        return Readings(value, error * (1 + gamma(16)))

    def __getstate__(self) -> dict[str, object]:
        # The capture holds functions of torch that cannot be stored; it is made again on demand.
        return {name: value for name, value in vars(self).items() if name not in ("_captured", "_proven")}
