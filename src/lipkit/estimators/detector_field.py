"""The score of a detector as a field: a trained network, mixed with the exact distance to rows."""

import copy
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit import sdf
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.estimators.standardised import Standardise
from lipkit.rounding.float64 import gamma
from lipkit.sdf import Readings


@final
class DetectorField(sdf.Field):
    """f(x) = (1 - share) g(s(x)) + share (margin - d(s(x))), s the standardisation, g a network, d an exact distance.

    The distance to rows or flats is exact and local; the network is smooth and sees the whole domain. Network and
    standardisation are copied, so the constant is proven for the weights that are evaluated, whatever becomes of what
    was given.

    Guarantee: K = ((1 - share) K_g + share) max factor of s, with K_g proven by lipkit. Values of `measure` carry the
    rounding of both parts and of s.
    Cost: one capture when it is first used; one evaluation of the network and one search a point.

    Args:
        first: The standardisation.
        network: One output for each standardised point, in float64; None for the distance alone.
        exact: Minus the distance to standardised rows, or to flats near them; None for the network alone.
        share: Share of the distance, in [0, 1]: 1 without a network, 0 without a distance.
        margin: Value of the second part at distance 0.
    """

    def __init__(
        self,
        first: Standardise,
        network: nn.Module | None,
        exact: sdf.Points | sdf.Flats | None,
        share: float,
        margin: float,
    ) -> None:
        if (network is None) != (share == 1) or (exact is None) != (share == 0):
            raise ArgumentError(f"A share of {share:g} does not fit to the parts that are given.")
        self._first, self._network = copy.deepcopy((first, network))
        self.exact: sdf.Points | sdf.Flats | None = exact
        self.share: float = share
        self.margin: float = margin

    @property
    def first(self) -> Standardise:
        """A copy of the standardisation."""
        return copy.deepcopy(self._first)

    @property
    def network(self) -> nn.Module | None:
        """A copy of the network, or None."""
        return copy.deepcopy(self._network)

    @property
    def dim(self) -> int:
        """How many columns a row has."""
        return len(self._first.mean)

    @property
    def bound(self) -> Bound:
        """The constant in units of X; proven when it is first asked for."""
        return self._proven

    @cached_property
    def _captured(self) -> sdf.Network | None:
        if self._network is None:
            return None
        example = torch.zeros(1, self.dim, dtype=torch.float64)
        return sdf.Network(nn.Sequential(self._first, self._network), example)

    @cached_property
    def _proven(self) -> Bound:
        distance = Bound.from_value(float(self._first.factor.max()), Kind.UPPER, "an exact distance, columns scaled")
        if self._captured is None:
            return distance
        if self.exact is None:
            return self._captured.bound
        return self._captured.bound.scale(1 - self.share).sum(distance.scale(self.share))

    def fast(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """Values without a capture, equal up to rounding; not finite for points too far out, which refuses no other."""
        inner = self._first(points)
        return self._mixed(None if self._network is None else self._network(inner).flatten(), inner)

    def among_others(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """Values at the rows themselves, each with the distance to other rows only; for ranking what was fitted.

        A point at distance 0 leaves itself out, and takes one row more if there is one. Flats are near many rows, so
        their distance is kept. No field has these values, so no constant holds for them.
        """
        values = self.fast(points)
        exact = self.exact
        if not isinstance(exact, sdf.Points) or len(exact.points) < 2:
            return values
        rows, inner = exact.points, self._first(points)
        wider = min(exact.neighbors + 1, len(rows))
        # Among so many distances one is 0, that to the point itself.
        others = sdf.Points(rows, wider, mean=True)(inner) * wider / (wider - 1)
        return values + self.share * torch.where(sdf.Points(rows)(inner) == 0, others - exact(inner), 0.0)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self._mixed(None if self._captured is None else self._captured(points), self._first(points))

    def _mixed(self, values: Tensor | None, inner: Tensor) -> Tensor:
        if self.exact is None:
            assert values is not None
            return values
        near = torch.isfinite(inner).all(1)
        # Searches take finite points only, and a field refuses all of its points for one that is too far out.
        exact = self.margin + self.exact._values(torch.where(near[:, None], inner, 0.0)).masked_fill(~near, torch.nan)
        return exact if values is None else (1 - self.share) * values + self.share * exact

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        if self.exact is None:
            assert self._captured is not None
            return self._captured.measure(points)
        inner = self._first(points)
        near = self.exact.measure(inner)
        # Rounding of the standardisation moves the point; the mixture takes five operations.
        moved = self._first.moved(inner)
        if self._captured is None:
            value = self.margin + near.value
            return Readings(value, (near.error + moved + gamma(8) * (near.value.abs() + self.margin)) * (1 + gamma(16)))
        smooth = self._captured.measure(points)
        value = (1 - self.share) * smooth.value + self.share * (self.margin + near.value)
        size = smooth.value.abs() + near.value.abs() + self.margin
        error = (1 - self.share) * smooth.error + self.share * (near.error + moved) + gamma(8) * size
        return Readings(value, error * (1 + gamma(16)))

    def __getstate__(self) -> dict[str, object]:
        # The capture holds functions of torch that cannot be stored; it is made again on demand.
        return {name: value for name, value in vars(self).items() if name not in ("_captured", "_proven")}
