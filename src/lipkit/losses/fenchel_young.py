"""Fenchel-Young losses: a convex function of predictions gives a prediction rule and the loss that fits it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses._base import Loss, Reduction, wide
from lipkit.losses.margins import check_classes, check_logits


class SimplexRegularizer(ABC):
    """A strictly convex Omega on the probability simplex (+inf outside), along the last axis."""

    @abstractmethod
    def value(self, prediction: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """Omega(p) for points p of the simplex."""

    @abstractmethod
    def predict(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """argmax over the simplex of <s, p> - Omega(p): the gradient of the conjugate."""

    @abstractmethod
    def conjugate(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        """Omega*(s) = max over the simplex of <s, p> - Omega(p); Omega*(s + c) = Omega*(s) + c."""


@final
@dataclass(frozen=True)
class ShannonRegularizer(SimplexRegularizer):
    """Omega(p) = sum_k p_k log p_k: predictions are the softmax, the loss is cross-entropy."""

    def value(self, prediction: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return torch.xlogy(prediction, prediction).sum(-1)

    def predict(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        return scores.softmax(-1)

    def conjugate(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return scores.logsumexp(-1)


@final
@dataclass(frozen=True)
class SquaredNormRegularizer(SimplexRegularizer):
    """Omega(p) = ||p||^2 / 2: predictions are the Euclidean projection on the simplex, the loss is sparsemax's.

    The derivative is that of the projection on the face of the support S: g_S - mean(g_S). Cost: one sort.
    Reference: Martins and Astudillo 2016; Blondel et al. 2020.
    """

    def value(self, prediction: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return prediction.square().sum(-1) / 2

    def predict(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        shifted = scores - scores.detach().amax(-1, keepdim=True)
        with torch.no_grad():
            ordered = shifted.sort(-1, descending=True).values
            count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
            sums = ordered.cumsum(-1)
            # The support is the longest prefix with 1 + k s_(k) > s_(1) + ... + s_(k); k = 1 always qualifies.
            size = (1 + count * ordered > sums).sum(-1, keepdim=True)
            support = shifted >= ordered.gather(-1, size - 1)
        # On a fixed support S the map is affine: its derivative sends g to g_S - mean(g_S), in either direction.
        level = (shifted.where(support, 0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
        return (shifted - level).where(support, 0).relu()

    def conjugate(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        best = self.predict(scores)
        return (scores * best).sum(-1) - self.value(best)


@final
@dataclass(frozen=True)
class TemperedRegularizer(SimplexRegularizer):
    """beta Omega, at temperature beta: predictions get flatter. (beta Omega)*(s) = beta Omega*(s / beta).

    Args:
        base: The function Omega.
        beta: Temperature: larger ones make predictions flatter.
    """

    base: SimplexRegularizer
    beta: float

    def __post_init__(self) -> None:
        if not 0.0 < self.beta < float("inf"):
            raise ArgumentError(f"A temperature is a finite number > 0, got {self.beta}.")

    def value(self, prediction: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return self.beta * self.base.value(prediction)

    def predict(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        return self.base.predict(scores / self.beta)

    def conjugate(self, scores: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
        return self.beta * self.base.conjugate(scores / self.beta)


@final
class FenchelYoung(Loss):
    """L(s, y) = Omega*(s) + Omega(y) - <s, y>: zero exactly if y is the regularised prediction for s.

    The gradient in s is predict(s) - y. With an inverse temperature, L_Omega(tau s, y) = tau L_(Omega / tau)(s, y):
    `TemperedRegularizer(omega, 1 / tau)`. Targets are class indices, or distributions of the shape of the scores.

    Promise: >= 0, convex in s, smooth wherever Omega is strongly convex. Cost: that of the regularizer.
    Reference: Blondel, Martins, Niculae 2020.

    Args:
        regularizer: The convex function Omega, which decides the prediction.
        reduction: As in torch: 'none', 'mean' or 'sum'.
    """

    def __init__(self, regularizer: SimplexRegularizer, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.regularizer = regularizer

    def forward(
        self, input: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"] | Float[Tensor, "batch classes"]
    ) -> Float[Tensor, "..."]:
        """The loss of scores against class indices or distributions."""
        scores = wide(input)
        check_logits(scores)
        if target.is_floating_point():
            if target.shape != scores.shape:
                raise ShapeError(
                    f"Distributions have the shape of the scores, {tuple(scores.shape)}, got {tuple(target.shape)}."
                )
            wanted = target.to(scores.dtype)
        else:
            check_classes(scores, target)
            wanted = functional.one_hot(target.long(), scores.shape[1]).to(scores.dtype)
        # Points of the simplex sum to 1, so a shift cancels; without it large scores would lose the difference.
        shifted = scores - scores.detach().amax(1, keepdim=True)
        losses = self.regularizer.conjugate(shifted) - (shifted * wanted).sum(1) + self.regularizer.value(wanted)
        return self.reduce(losses)
