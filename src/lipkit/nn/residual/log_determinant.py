"""Log-determinants of x + g(x) for a contraction g: by the whole Jacobian, or by power series and random probes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.nn.residual.fixed_point import refuse_second_derivatives
from lipkit.rounding.slacks import ROUNDINGS_128, UNIT

# (w, differentiable) -> J'w, one vector for each sample.
Pullback = Callable[[Tensor, bool], Tensor]


@final
@dataclass(frozen=True, eq=False)
class LogDeterminant:
    """log det of the Jacobian of a block at each sample, and what the number is.

    `kind` is EXACT up to rounding (of the whole Jacobian), or ESTIMATE (of random probes); it is never a bound.
    `truncation` bounds how far the expectation of an estimate is from the truth: 0 where it is unbiased. `image` is
    the output of the block, which was computed on the way.
    """

    value: Float[Tensor, " batch"]
    kind: Kind
    truncation: float
    image: Float[Tensor, "batch *shape"]


class LogDeterminantMethod(ABC):
    """How log det(I + J) is found, for a Jacobian J of norm at most c < 1: frozen dataclasses with the settings."""

    @abstractmethod
    def __call__(
        self, pullback: Pullback, like: Float[Tensor, "batch *shape"], constant: float
    ) -> tuple[Float[Tensor, " batch"], Kind, float]:
        """The value for each sample, its kind, and a bound of its truncation.

        Args:
            pullback: Applies the transposed Jacobian, with derivatives of the result if it is told so.
            like: The samples.
            constant: c.
        """


@final
@dataclass(frozen=True)
class DenseJacobian(LogDeterminantMethod):
    """log det(I + J) from the whole matrix J. Guarantee: EXACT, up to the rounding of the type; all derivatives.

    Cost: one backward pass for each entry of a sample, and an LU decomposition.

    Args:
        most: Largest number of entries of one sample; larger ones are refused.
    """

    most: int = 256

    def __call__(
        self, pullback: Pullback, like: Float[Tensor, "batch *shape"], constant: float
    ) -> tuple[Float[Tensor, " batch"], Kind, float]:
        size = like[0].numel()
        if size > self.most:
            raise TooLargeError(
                f"DenseJacobian needs a {size} x {size} matrix for each sample, more than most = {self.most} rows; use "
                "PowerSeries() or RussianRoulette(), or allow more."
            )
        units = torch.eye(size, dtype=like.dtype, device=like.device).reshape(size, 1, *like.shape[1:])
        rows = [pullback(unit.expand_as(like), torch.is_grad_enabled()).flatten(1) for unit in units]
        # Narrow types have no LU decomposition.
        matrix = torch.stack(rows, 1).to(torch.promote_types(like.dtype, torch.float32))
        identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
        return torch.linalg.slogdet(identity + matrix).logabsdet, Kind.EXACT, 0.0


class _Series(LogDeterminantMethod):
    """log det(I + J) = sum_k (-1)^(k+1) tr(J^k) / k with tr(J^k) = E v'J^k v for random signs v.

    The derivative tr((I + J)^-1 dJ) is E u'dJ v with u = sum_k (-1)^k (J')^k v, from the same vectors: one more pass,
    and no graph of the powers is kept. It is the derivative of the expectation, not of the drawn number.
    """

    probes: int

    def _estimate(
        self, pullback: Pullback, like: Float[Tensor, "batch *shape"], weights: list[float]
    ) -> Float[Tensor, " batch"]:
        """The mean over probes of sum_k weights[k - 1] (-1)^(k+1) v'J^k v / k."""
        total = torch.zeros(len(like), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
        for _ in range(self.probes):
            probe = torch.randint(0, 2, like.shape, device=like.device).to(like.dtype) * 2 - 1
            value, power, sign = torch.zeros_like(total), probe, 1.0
            solved = torch.zeros_like(probe)
            for k, weight in enumerate(weights, 1):
                solved = solved + sign * weight * power
                power = pullback(power, False)
                value = value + sign * weight / k * _products(power, probe).to(value.dtype)
                sign = -sign
            total = total + value
            if torch.is_grad_enabled():
                moving = _products(pullback(solved, True), probe).to(total.dtype)
                if moving.requires_grad:
                    moving.register_hook(_once)
                total = total + (moving - moving.detach())
        return total / self.probes


@final
@dataclass(frozen=True)
class PowerSeries(_Series):
    """The first `terms` terms of sum_k (-1)^(k+1) tr(J^k) / k, traces by random signs (Hutchinson).

    Guarantee: an ESTIMATE, whose expectation is within n c^(terms + 1) / ((terms + 1)(1 - c)) of the truth for n
    entries a sample; that bound is `truncation`. Cost: `probes` (terms + 1) backward passes.
    Reference: Behrmann et al. 2019.

    Args:
        terms: Number of terms.
        probes: Number of random vectors for each sample.
    """

    terms: int = 10
    probes: int = 1

    def __post_init__(self) -> None:
        _at_least_one(type(self).__name__, terms=self.terms, probes=self.probes)

    def __call__(
        self, pullback: Pullback, like: Float[Tensor, "batch *shape"], constant: float
    ) -> tuple[Float[Tensor, " batch"], Kind, float]:
        n = self.terms + 1
        cut = like[0].numel() * constant**n / (n * (1 - constant)) * (1 + ROUNDINGS_128)
        return self._estimate(pullback, like, [1.0] * self.terms), Kind.ESTIMATE, cut


@final
@dataclass(frozen=True)
class RussianRoulette(_Series):
    """The power series with a random number of terms: `sure` ones, then each further one with probability 1 - stop.

    Term k is divided by the probability that it is reached, so the expectation is the whole series. All samples of a
    call share the number of terms. Guarantee: an unbiased ESTIMATE, of value and derivative, with a finite variance:
    c^2 < 1 - stop is asked for, since the k-th term is at most n c^k/k and its square counts over (1 - stop)^k.
    Cost: `probes` (sure + 1/stop) backward passes on average. Reference: Chen et al. 2019; the condition is ours.

    Args:
        sure: Number of terms that are always taken.
        stop: Probability to stop after each further term, in (0, 1).
        probes: Number of random vectors for each sample.
    """

    sure: int = 5
    stop: float = 0.1
    probes: int = 1

    def __post_init__(self) -> None:
        _at_least_one(type(self).__name__, sure=self.sure, probes=self.probes)
        if not 0 < self.stop < 1:
            raise ArgumentError(f"RussianRoulette.stop is a probability in (0, 1), got {self.stop}.")

    def __call__(
        self, pullback: Pullback, like: Float[Tensor, "batch *shape"], constant: float
    ) -> tuple[Float[Tensor, " batch"], Kind, float]:
        if not constant**2 < 1 - self.stop:
            raise ArgumentError(
                f"With a contraction of {constant:.3g} and stop = {self.stop:g} the variance of RussianRoulette may be "
                f"infinite; take stop below 1 - c^2 = {1 - constant**2:.3g}, or a smaller contraction."
            )
        # P(further >= m) = (1 - stop)^m; the draw may be 0, whose logarithm is no number of terms.
        draw = max(float(torch.rand((), dtype=torch.float64)), UNIT)
        further = int(math.log(draw) / math.log1p(-self.stop))
        weights = [1.0] * self.sure + [(1 - self.stop) ** -m for m in range(1, further + 1)]
        return self._estimate(pullback, like, weights), Kind.ESTIMATE, 0.0


def _products(a: Tensor, b: Tensor) -> Float[Tensor, " batch"]:
    return (a * b).flatten(1).sum(1)


def _once(_: Tensor | None) -> None:
    refuse_second_derivatives("estimated log-determinant")


def _at_least_one(name: str, **numbers: int) -> None:
    for field, number in numbers.items():
        if number < 1:
            raise ArgumentError(f"{name}.{field} must be at least 1, got {number}.")
