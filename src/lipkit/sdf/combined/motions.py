"""Solids that are rotated, shifted and scaled."""

import math
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.float64 import gamma, sums_up
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192
from lipkit.sdf._base import Field, constant_of
from lipkit.sdf.combined._base import Combined
from lipkit.sdf.exact.lengths import length_error, lengths, underflow
from lipkit.sdf.exact.solids import check_vector
from lipkit.sdf.given_numbers import as_reals


@final
class Moved(Combined):
    """A solid after the rigid motion x -> R x + shift: f(x) = a(R' (x - shift)).

    Guarantee: the constant of a, of its kind; with a rotation times the largest singular value that R can have, which
    is 1 up to rounding (UPPER). Cost: that of a, and d^2 for the rotation.

    Args:
        a: The solid.
        shift: Where its origin goes.
        rotation: R, orthogonal up to rounding in float64; reflections are allowed. None leaves it as it is.
    """

    def __init__(self, a: Field, shift: Float[Tensor, " d"], rotation: Float[Tensor, "e e"] | None = None) -> None:
        super().__init__(a)
        self._shift: Float64[Tensor, " d"] = check_vector(shift, "shift")
        if len(self._shift) != a.dim:
            raise ShapeError(f"A shift of a field in dimension {a.dim} has as many entries, got {len(self._shift)}.")
        self._rotation: Float64[Tensor, "d d"] | None = None if rotation is None else _check_rotation(rotation, a.dim)

    @property
    def shift(self) -> Float64[Tensor, " d"]:
        """A copy of the shift."""
        return self._shift.clone()

    @property
    def rotation(self) -> Float64[Tensor, "d d"] | None:
        """A copy of the rotation, or None."""
        return None if self._rotation is None else self._rotation.clone()

    def _bound(self) -> Bound:
        bound = self.operands[0].bound
        if self._rotation is None:
            return bound
        # |R|^2 = |R'R| <= 1 + |R'R - I|, and (1 + e)^(1/2) <= 1 + e.
        return replace(bound.scale(1.0 + _defect(self._rotation)), kind=Kind.UPPER, lower=None)

    def _at(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        moved = points - self._shift.to(points.device)
        return moved if self._rotation is None else moved @ self._rotation.to(points.device)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return values[0]

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del values
        # What the point is off by counts K times.
        away = lengths(points - self._shift.to(points.device))
        turned = 1.0 if self._rotation is None else 1.0 + float(sums_up(self._rotation.abs()))
        off = length_error(self.dim, away) * turned + underflow(self.dim)
        return (errors[0] + constant_of(self.operands[0]) * off) * (1 + ROUNDINGS_8)


@final
class Scaled(Combined):
    """A solid stretched by positive factors along the axes, x -> s x: f(x) = min(s) a(x / s).

    For one factor this is the signed distance of the scaled solid if a is that of the solid. For several, a(x / s)
    alone has the constant K / min(s); the factor in front brings it back to K, so |f| never exceeds the distance.

    Guarantee: the constant of a, of its kind for one factor, UPPER for several. Cost: that of a.

    Args:
        a: The solid.
        factor: One factor, or one for each axis.
    """

    def __init__(self, a: Field, factor: float | Float[Tensor, " d"]) -> None:
        super().__init__(a)
        one = as_reals(factor, "factor")
        if one.ndim and tuple(one.shape) != (a.dim,):
            raise ShapeError(f"A field in dimension {a.dim} has one factor or {a.dim}, got shape {tuple(one.shape)}.")
        self._factor: Float64[Tensor, " d"] = check_vector(one.expand(a.dim), "factor")
        if not bool((self._factor > 0).all()):
            raise ArgumentError(f"Factors are positive, got {self._factor.tolist()[:8]}; mirror with a rotation.")
        self._least = float(self._factor.min())

    @property
    def factor(self) -> Float64[Tensor, " d"]:
        """A copy of the factors, one for each axis."""
        return self._factor.clone()

    def _bound(self) -> Bound:
        bound = self.operands[0].bound
        if bool((self._factor == self._least).all()):
            return bound
        return replace(bound, kind=Kind.UPPER, lower=None)

    def _at(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        return points / self._factor.to(points.device)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return self._least * values[0]

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        # x / s is rounded relative to itself, the value once more.
        at = self._at(points)
        off = errors[0] + constant_of(self.operands[0]) * length_error(self.dim, lengths(at))
        return (self._least * (off + values[0].abs() * ROUNDINGS_8) + underflow(1)) * (1 + ROUNDINGS_8)


def _check_rotation(rotation: Tensor, dim: int) -> Tensor:
    found = as_reals(rotation, "rotation")
    if tuple(found.shape) != (dim, dim):
        raise ShapeError(f"A rotation in dimension {dim} is a matrix ({dim}, {dim}), got shape {tuple(found.shape)}.")
    defect = _defect(found)
    if not defect <= ROUNDINGS_8192 * dim:
        raise ArgumentError(
            f"A rotation is orthogonal up to rounding in float64, but |R'R - I| is up to {defect:.2g} here; "
            "take the Q of torch.linalg.qr in float64, and use Scaled for what stretches."
        )
    return found


def _defect(rotation: Tensor) -> float:
    """An upper bound of |R'R - I|, its own rounding included."""
    gram = rotation.mT @ rotation - torch.eye(len(rotation)).to(rotation)
    own = gamma(len(rotation) + 4) * float(sums_up(rotation.abs())) ** 2
    found = (float(sums_up(gram)) + own) * (1 + ROUNDINGS_8)
    return found if math.isfinite(found) else math.inf
