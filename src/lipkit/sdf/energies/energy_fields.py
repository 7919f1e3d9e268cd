"""Sums and log-sum-exps of fields, with their constants: the energies of products, quotients and mixtures."""

import math
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError
from lipkit.rounding.slacks import ROUNDINGS_32, UNIT
from lipkit.sdf._base import Field


@final
class SignedSum(Field):
    """a + s b with s = 1 or -1. Guarantee: constant K_a + K_b, an upper bound, which is attained by a = s b."""

    def __init__(self, a: Field, b: Field, sign: float) -> None:
        _require_same_dim(a, b)
        if sign not in (1.0, -1.0):
            raise ArgumentError(f"The sign of a sum is 1 or -1, got {sign}.")
        self.a, self.b, self.sign = a, b, sign

    @property
    def dim(self) -> int:
        return self.a.dim

    @property
    def bound(self) -> Bound:
        return self.a.bound.sum(self.b.bound)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return self.a(points) + self.sign * self.b(points)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return (1 + ROUNDINGS_32) * (self.a.measure(points).error + self.b.measure(points).error + UNIT * values.abs())


@final
class LogSumExp(Field):
    """-log(w exp(-a) + v exp(-b)), below min(a - log w, b - log v) by at most log 2.

    Guarantee: constant max(K_a, K_b), an upper bound: the gradient is a mean of the two gradients.
    """

    def __init__(self, a: Field, b: Field, log_weights: tuple[float, float]) -> None:
        _require_same_dim(a, b)
        if not all(math.isfinite(w) for w in log_weights):
            raise ArgumentError(f"The logarithms of weights are finite numbers, got {log_weights}.")
        self.a, self.b, self.log_weights = a, b, log_weights

    @property
    def dim(self) -> int:
        return self.a.dim

    @property
    def bound(self) -> Bound:
        # The larger constant belongs to the pair (a, b); a mean of the two gradients may well be smaller.
        larger = self.a.bound.max(self.b.bound)
        return replace(larger, kind=larger.kind.restricted, lower=None)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        log_w, log_v = self.log_weights
        return -torch.logaddexp(log_w - self.a(points), log_v - self.b(points))

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        # An error of the two arguments passes on as a mean of both. logaddexp(s, t) is max + log1p(exp(-|s - t|)): the
        # difference is rounded by UNIT |s - t|, of which exp(-|s - t|) leaves at most UNIT / e; all else is relative to
        # numbers below the arguments or log 2.
        a, b = self.a.measure(points), self.b.measure(points)
        log_w, log_v = self.log_weights
        sizes = torch.maximum(a.value.abs() + abs(log_w), b.value.abs() + abs(log_v)) + values.abs() + 1
        return (1 + ROUNDINGS_32) * torch.maximum(a.error, b.error) + ROUNDINGS_32 * sizes


def _require_same_dim(a: Field, b: Field) -> None:
    if a.dim != b.dim:
        raise ShapeError(f"Two fields are combined in one space, got {a.dim} and {b.dim} coordinates.")
