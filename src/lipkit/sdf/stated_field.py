"""Any function of points as a field, with a constant that somebody states."""

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import gamma
from lipkit.sdf._base import Field
from lipkit.sdf.exact.lengths import underflow
from lipkit.sdf.given_numbers import as_number, as_whole

# Of more roundings gamma is no small number, and from 2^53 on it is none at all.
_MOST_ROUNDINGS = 2**50


@final
class Function(Field):
    """The field x -> call(x), whose constant is stated, not proven.

    Trusted: `constant`, and that a value is off by at most

        gamma(roundings) (|f(x)| + K |x| + |f(0)|) + absolute,   gamma(k) = k u / (1 - k u), u = 2^-53,

    which holds if no intermediate result is larger than the sum in parentheses and none carries more than `roundings`
    roundings. Everything that is proven from the field rests on both.

    Cost: one call a batch, and one at the origin.

    Args:
        call: A function of points (n, d) in float64 with values (n,) in float64, differentiable by torch.
        dim: How many coordinates a point has.
        constant: K with |f(x) - f(y)| <= K |x - y| for all points, in l2.
        roundings: How many roundings a value carries.
        absolute: An error of values that is not relative.
    """

    def __init__(
        self,
        call: Callable[[Float64[Tensor, "n d"]], Float64[Tensor, " n"]],
        dim: int,
        constant: float,
        roundings: int = 1024,
        absolute: float = 0.0,
    ) -> None:
        dim, roundings = as_whole(dim, "dim"), as_whole(roundings, "roundings")
        constant, absolute = as_number(constant, "constant"), as_number(absolute, "absolute")
        if dim < 1 or not 0 <= roundings <= _MOST_ROUNDINGS:
            raise ArgumentError(
                f"A field has dim >= 1 and between 0 and 2^50 roundings, got dim={dim}, roundings={roundings}; an "
                "error as large as the value itself is `absolute`."
            )
        if not 0 <= constant < math.inf or not 0 <= absolute < math.inf:
            raise ArgumentError(
                f"A constant and an absolute error are finite and >= 0, got constant={constant}, absolute={absolute}."
            )
        self.call = call
        self.constant: float = constant
        self.roundings: int = roundings
        self.absolute: float = absolute
        self._dim = dim
        with torch.no_grad():
            self._origin = float(self._values(torch.zeros(1, dim, dtype=torch.float64)).abs())
        if not self._origin < math.inf:
            raise NonFiniteError(f"The function has no finite value at the origin, it gave {self._origin}.")

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def bound(self) -> Bound:
        return Bound.from_value(self.constant, Kind.UPPER, self)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        found = self.call(points)
        if not isinstance(found, Tensor) or found.shape != (len(points),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(f"A function of {len(points)} points has values of shape ({len(points)},), got {shape}.")
        if found.dtype != torch.float64:
            raise ArgumentError(f"Points come in float64 and so must the values go, got {found.dtype}.")
        return found

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        size = values.abs() + self.constant * torch.linalg.vector_norm(points, dim=1) + self._origin
        # Subnormal numbers are rounded by a step, not by a share.
        return gamma(self.roundings) * size * (1 + gamma(self.dim + 8)) + self.absolute + underflow(self.dim)
