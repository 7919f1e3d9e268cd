"""Objectives: the numbers that an attack increases."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor


def margins(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """z_y - max over j != y of z_j: negative exactly where another class wins; a tie gives 0."""
    own = torch.nn.functional.one_hot(labels.long(), logits.shape[1]).bool()
    return logits.gather(1, labels.long()[:, None]).squeeze(1) - logits.masked_fill(own, -torch.inf).amax(1)


class Objective(ABC):
    """One number a sample, larger is worse for the model; abstract.

    An attack runs once for every round, so an objective with several rounds tries several directions.
    """

    def rounds(self, classes: int) -> int:
        """The number of different functions that this objective stands for."""
        return 1

    @abstractmethod
    def __call__(
        self, logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], round: int
    ) -> Float[Tensor, " n"]:
        """The value of each sample in one round, differentiable in the logits."""


@final
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """log sum over j != y of exp(z_j) - z_y: the cross-entropy is softplus of it, so it points the same way.

    Steps are normalised, so only the direction and the order of values matter, and both are those of the cross-entropy.
    Its own gradient vanishes where the model is sure: in float32 the label's part is lost at a margin of 17 and the
    rest at 104; this one never does. Evaluated in float32 at least.
    """

    def __str__(self) -> str:
        return "cross-entropy"

    def __call__(self, logits: Tensor, labels: Tensor, round: int) -> Tensor:
        wide = logits if logits.dtype == torch.float64 else logits.float()
        own = torch.nn.functional.one_hot(labels.long(), wide.shape[1]).bool()
        rivals = torch.logsumexp(wide.masked_fill(own, -torch.inf), 1)
        return rivals - wide.gather(1, labels.long()[:, None]).squeeze(1)


@final
@dataclass(frozen=True)
class Margin(Objective):
    """max over j != y of z_j - z_y: positive exactly where the label has lost.

    It follows one rival at a time; `CrossEntropy` weighs all of them and needs fewer restarts.
    Reference: Carlini, Wagner 2017.
    """

    def __str__(self) -> str:
        return "margin"

    def __call__(self, logits: Tensor, labels: Tensor, round: int) -> Tensor:
        return -margins(logits, labels)


@final
@dataclass(frozen=True)
class EveryClass(Objective):
    """z_t - z_y with each wrong class t as the target of one round: K - 1 runs, each of a smooth function.

    The margin follows whichever rival leads and can be held in a corner between two; a fixed target is not. Costs K - 1
    times as much. Reference: Croce, Hein 2020 use targets in the same way.
    """

    def __str__(self) -> str:
        return "margin to every class"

    def rounds(self, classes: int) -> int:
        """One for each wrong class."""
        return classes - 1

    def __call__(self, logits: Tensor, labels: Tensor, round: int) -> Tensor:
        own = labels.long()[:, None]
        target = (own + 1 + round) % logits.shape[1]
        return (logits.gather(1, target) - logits.gather(1, own)).squeeze(1)
