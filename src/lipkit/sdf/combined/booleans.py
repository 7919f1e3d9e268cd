"""Unions, intersections, differences and complements of what fields describe, by minima and maxima."""

from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.sdf._base import Field
from lipkit.sdf.combined._base import Combined, largest


class _Extremum(Combined):
    """A combination that is one of its operands, up to sign, at every point: errors pass and nothing is rounded."""

    def _bound(self) -> Bound:
        return largest(self.operands)

    def _combine_errors(
        self, points: Float64[Tensor, "n d"], values: Float64[Tensor, "k n"], errors: Float64[Tensor, "k n"]
    ) -> Float64[Tensor, " n"]:
        del points, values
        return errors.amax(0)


@final
class Union(_Extremum):
    """The points of one field or another: f(x) = max_i f_i(x).

    Guarantee: the largest constant of the parts (UPPER). The signed distance of the union outside of it; inside at most
    that, where the parts are signed distances. Cost: that of the parts.
    Reference: Ricci 1973.
    """

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return values.amax(0)


@final
class Intersection(_Extremum):
    """The points of all fields: f(x) = min_i f_i(x).

    Guarantee: the largest constant of the parts (UPPER). The signed distance inside; outside at most that in size,
    where the parts are signed distances. Cost: that of the parts.
    Reference: Ricci 1973.
    """

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return values.amin(0)


@final
class Difference(_Extremum):
    """The points of one field and not of another: f(x) = min(a(x), -b(x)).

    Guarantee: the larger constant (UPPER); at most the distance to the boundary in size. Cost: that of the parts.
    Reference: Ricci 1973.
    """

    def __init__(self, a: Field, b: Field) -> None:
        super().__init__(a, b)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return torch.minimum(values[0], -values[1])


@final
class Complement(_Extremum):
    """Inside and outside exchanged: f(x) = -a(x). Guarantee: the constant of a, of its kind. Cost: that of a."""

    def __init__(self, a: Field) -> None:
        super().__init__(a)

    def _combine(self, values: Float64[Tensor, "k n"]) -> Float64[Tensor, " n"]:
        return -values[0]
