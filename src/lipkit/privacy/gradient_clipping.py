"""Clipping of the gradient of a loss in the outputs, record by record: a bound that the loss need not have."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


class Clip(ABC):
    """A limit C of |d loss_i / d output_i|_2, which backward passes keep; see `Fixed` and `Quantile`."""

    @property
    @abstractmethod
    def limit(self) -> float:
        """The limit C of this step."""

    @final
    def __call__(self, outputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The outputs as they are; on the way back the gradient of each record is cut to the norm C.

        The loss behind it must be the sum over records, not their mean. A gradient with NaN entries, as autograd gives
        for a norm at zero, becomes zero. Cost: one norm a record, of as many entries as there are outputs.
        """
        if outputs.ndim < 2:
            raise ShapeError(f"Outputs have a batch axis and at least one other, got {tuple(outputs.shape)}.")
        return _clip_rows(outputs, self.limit)


@final
@dataclass(frozen=True)
class Fixed(Clip):
    """The same limit in every step: a public number, which costs no privacy.

    With bias-free layers whose Jacobians are orthogonal and inputs of one norm X this is the clipping of the whole
    gradient of one record, to X C sqrt(number of tensors). Reference: Béthune 2024, section 6.4; the equality is ours.
    """

    value: float

    def __post_init__(self) -> None:
        _require_positive("The limit of Fixed", self.value)

    @property
    def limit(self) -> float:
        return self.value


@final
@dataclass(frozen=True)
class Quantile(Clip):
    """A limit that follows a quantile of the norms of the gradients, by one noised count a step:

        count = sum_i (1[n_i <= C] - 1/2) + N(0, (multiplier / 2)^2),   fraction = count / batch + 1/2,
        C <- C exp(-rate (fraction - quantile)).

    The sensitivity of the count is 1/2 if a record is added or removed. On the batch of the gradient it is one more
    released tensor: 1 / sigma^2 = sum over all tensors of 1 / sigma_d^2; `left` says what remains for the others.
    Reference: Andrew et al. 2021; the centered count, with half the noise, is ours.

    Args:
        value: The limit of the first step.
        multiplier: Noise of the count in units of its sensitivity.
        quantile: Which share of the norms should lie below the limit.
        rate: How fast the logarithm of the limit moves.
    """

    value: float
    multiplier: float
    quantile: float = 0.9
    rate: float = 0.2

    def __post_init__(self) -> None:
        _require_positive("The limit of Quantile", self.value)
        _require_positive("The multiplier of Quantile", self.multiplier)
        _require_positive("The rate of Quantile", self.rate)
        if not 0 < self.quantile < 1:
            raise ArgumentError(f"A quantile lies in (0, 1), got {self.quantile}.")

    @property
    def limit(self) -> float:
        return self.value

    @property
    def sensitivity(self) -> float:
        """How far one record moves the count: 1/2."""
        return 0.5

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on the count."""
        return self.multiplier * self.sensitivity

    def left(self, sigma: float) -> float:
        """The multiplier that the gradient may have, so that both together are one release of multiplier `sigma`."""
        if not self.multiplier > sigma > 0:
            raise ArgumentError(
                f"The count alone has the multiplier {self.multiplier:g}, which must be above that of the whole "
                f"release, {sigma:g}; take about five times as much."
            )
        return (sigma**-2 - self.multiplier**-2) ** -0.5

    def count(self, norms: Float[Tensor, " records"]) -> float:
        """sum_i (1[n_i <= C] - 1/2), without noise; for the norms of gradients before they are clipped."""
        return float((norms <= self.value).sum()) - norms.numel() / 2

    def after(self, noised: float, batch: int) -> "Quantile":
        """The rule of the next step, from the noised count and the planned size of a batch."""
        if batch < 1 or not math.isfinite(noised):
            raise ArgumentError(f"The next limit needs a finite count and a planned batch, got {noised} and {batch}.")
        # Noise may take the fraction out of [0, 1]; a step of the logarithm stays small.
        fraction = min(1.0, max(0.0, noised / batch + 0.5))
        return replace(self, value=self.value * math.exp(-self.rate * (fraction - self.quantile)))


def _require_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{what} must be a finite number > 0, got {value}.")


@final
class _ClippedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, limit: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.limit = limit
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows = gradient.flatten(1)
        rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        norms = torch.linalg.vector_norm(rows.double(), dim=1, keepdim=True)
        # A quotient of equal numbers is 1, and zero stays zero.
        factor = (ctx.limit / norms.clamp(min=ctx.limit)).to(rows.dtype)
        return (rows * factor).reshape(gradient.shape), None


def _clip_rows(outputs: Tensor, limit: float) -> Tensor:
    clipped = _ClippedRows.apply(outputs, limit)
    assert isinstance(clipped, Tensor)
    return clipped
