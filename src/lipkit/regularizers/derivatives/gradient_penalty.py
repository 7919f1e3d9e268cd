"""Penalties on the gradient of a scalar function, or of a loss, with respect to the input."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.regularizers.derivatives.input_points import evaluate_flat, pull_back, safe_root, track_input


class PenalizedSide(enum.Enum):
    """The gradient norms that are penalised."""

    TWO = "all that differ from the target"
    ONE = "those above the target"


@final
@dataclass(frozen=True)
class GradientPenalty:
    """mean over samples of (||grad_x f(x)||_2 - target)^2, or of max(0, ||grad_x f(x)||_2 - target)^2.

    f is any callable with one number for each sample. Which points: the data, or `points_between(real, fake)`.

    Guarantee: none; the gradient is seen at the given points only. Cost: one forward and one backward pass, and when
    training a backward pass through both, so everything in f needs second derivatives; under no_grad only the value is
    computed. Samples must not influence each other, as batch normalisation in training mode makes them do.
    References: Gulrajani et al. 2017 (two-sided, target 1, weight 10); Petzka, Fischer, Lukovnikov 2018 (one-sided).

    Args:
        target: Gradient norm that is free of charge.
        side: Whether smaller norms cost too, or only larger ones.
    """

    target: float = 1.0
    side: PenalizedSide = PenalizedSide.TWO

    def __post_init__(self) -> None:
        if not self.target >= 0:
            raise ArgumentError(f"GradientPenalty.target must be >= 0, got {self.target}.")

    def __call__(self, model: Callable[[Tensor], Tensor], x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, ""]:
        """The penalty at the points `x`."""
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            x = track_input(x)
            y = evaluate_flat(model, x)
            if y.shape[1] != 1:
                raise ShapeError(
                    f"A gradient penalty needs one number a sample, got {y.shape[1]}; use JacobianPenalty for vectors."
                )
            norms = safe_root(pull_back(y, x, torch.ones_like(y), graph).square().sum(1))
        excess = norms - self.target
        return (excess if self.side is PenalizedSide.TWO else excess.clamp(min=0)).square().mean()


@final
@dataclass(frozen=True)
class InputGradient:
    """mean over samples of 1/2 ||grad_x loss(f(x), y)||_2^2, or of ||grad_x loss(f(x), y)||_2 with `squared=False`.

    `loss(outputs, target)` gives one number for each sample (reduction="none"): after a mean the gradients would shrink
    with the batch, so that is refused. To first order, the norm times epsilon is what an l2 attack of that size gains.

    Guarantee: none. Cost: as `GradientPenalty`.
    References: Drucker and LeCun 1992 (squares); Finlay and Oberman 2021 (norms).

    Args:
        squared: Whether half the squared norm is penalised, or the norm.
    """

    squared: bool = True

    def __call__(
        self,
        model: Callable[[Tensor], Tensor],
        x: Shaped[Tensor, "batch ..."],
        target: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> Float[Tensor, ""]:
        """The penalty at the points `x` with labels `target`."""
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            x = track_input(x)
            values = loss(model(x), target)
            if values.shape != x.shape[:1]:
                raise ShapeError(
                    f"The loss must give one number for each of {x.shape[0]} samples, got shape {tuple(values.shape)}; "
                    'use reduction="none".'
                )
            squares = pull_back(values, x, torch.ones_like(values), graph).square().sum(1)
            return squares.mean() / 2 if self.squared else safe_root(squares).mean()
