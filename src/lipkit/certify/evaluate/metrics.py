"""Metrics that are fed batch by batch: reset, update, compute; summed over all processes of a distributed run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.bound import Bound
from lipkit.certify.attacks import Attack
from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.evaluate.evaluation import Proportion
from lipkit.certify.evaluate.running_sums import RunningMetric
from lipkit.certify.radii.forward import Logits
from lipkit.certify.radii.radius import check_classified, radius
from lipkit.errors import ArgumentError


@final
class CleanAccuracy(RunningMetric[Proportion]):
    """The share of samples whose largest logit is that of the label; ties count as wrong, as in a certificate."""

    def __init__(self, level: float = 0.95, classes: int | None = None) -> None:
        super().__init__(1, classes)
        self._level = check_level(level)

    def update(self, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> None:
        """Add a batch."""
        self._add(_right(logits, labels)[:, None].double(), labels)

    def _result(self, sums: list[float]) -> Proportion:
        count, total = sums
        return Proportion.of(round(count), round(total), self._level)


@final
class CertifiedAccuracy(RunningMetric[tuple[Proportion, ...]]):
    """The share of samples with a certified radius above each of `eps`.

    `bound` is as in `radius`; during training its constant changes, so `update` may be given a new one. `error` is how
    far logits may be off: those of a float32 model are not exact, and a certificate that counts it uses `accuracy`.
    """

    def __init__(
        self,
        eps: Sequence[float],
        bound: Bound | None = None,
        error: float = 0.0,
        level: float = 0.95,
        classes: int | None = None,
    ) -> None:
        self.eps = _radii(eps)
        super().__init__(len(self.eps), classes)
        self._bound, self._error, self._level = bound, error, check_level(level)

    def update(
        self,
        logits: Float[Tensor, "batch classes"] | Logits,
        labels: Int[Tensor, " batch"],
        bound: Bound | None = None,
        at: Float[Tensor, "batch ..."] | None = None,
    ) -> None:
        """Add a batch; a constant that holds near its inputs only needs them, as `at`.

        A bound is refused for inputs of another shape, and for `Logits` (of `Forward`) of another network.
        """
        found = radius(logits, labels, _chosen(bound, self._bound), error=self._error, at=at)
        self._add(torch.stack([found.certified(e) for e in self.eps], dim=1).double(), labels)

    def _result(self, sums: list[float]) -> tuple[Proportion, ...]:
        """A share for each of `eps`."""
        return _shares(sums, self._level)


@final
class AttackedAccuracy(RunningMetric[tuple[Proportion, ...]]):
    """The share of samples that are right, and stay so under an attack of each of the radii `eps`.

    `update` takes inputs, not logits, and attacks them. What an attack of a smaller radius broke stays broken. Classes
    are those that the model computes in its own type, a tie is none: a lead that is only rounding decides here, and
    `accuracy` looks closer.

    Guarantee: UPPER for the robust accuracy of the model as it computes, on these samples. Cost: the attack, once for
    each radius, on the samples that still stand.
    """

    def __init__(
        self, model: nn.Module, attack: Attack, eps: Sequence[float], level: float = 0.95, classes: int | None = None
    ) -> None:
        self.eps = tuple(sorted(_radii(eps)))
        super().__init__(len(self.eps), classes)
        self._model, self._attack, self._level = model, attack, check_level(level)

    def update(
        self,
        inputs: Float[Tensor, "batch ..."],
        labels: Int[Tensor, " batch"],
        generator: torch.Generator | None = None,
    ) -> None:
        """Add a batch; `generator` makes the attack repeatable."""
        labels = labels.to(inputs.device)
        stands = self._stands(inputs, labels)
        columns: list[Tensor] = []
        for e in self.eps:
            rows = stands.nonzero().squeeze(1)
            if len(rows):
                moved = replace(self._attack, eps=e)(self._model, inputs[rows], labels[rows], generator=generator)
                stands = stands.index_put((rows,), self._stands(moved, labels[rows]))
            columns.append(stands)
        self._add(torch.stack(columns, dim=1).double(), labels)

    def _stands(self, inputs: Tensor, labels: Tensor) -> Bool[Tensor, " batch"]:
        with torch.no_grad(), evaluating(self._model):
            return _right(self._model(inputs), labels)

    def _result(self, sums: list[float]) -> tuple[Proportion, ...]:
        """A share for each of `eps`, in increasing order."""
        return _shares(sums, self._level)


@final
class AverageRadius(RunningMetric[float]):
    """The mean certified radius, with 0 for samples that are classified wrongly; NaN of nothing."""

    def __init__(self, bound: Bound | None = None, error: float = 0.0, classes: int | None = None) -> None:
        super().__init__(1, classes)
        self._bound, self._error = bound, error

    def update(
        self,
        logits: Float[Tensor, "batch classes"] | Logits,
        labels: Int[Tensor, " batch"],
        bound: Bound | None = None,
        at: Float[Tensor, "batch ..."] | None = None,
    ) -> None:
        """Add a batch; a constant that holds near its inputs only needs them, as `at`.

        A bound is refused for inputs of another shape, and for `Logits` (of `Forward`) of another network.
        """
        found = radius(logits, labels, _chosen(bound, self._bound), error=self._error, at=at)
        self._add(found.value[:, None], labels)

    def _result(self, sums: list[float]) -> float:
        total, count = sums
        return total / count if count else math.nan


def _right(logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    check_classified(logits, labels)
    own = logits.gather(1, labels.to(logits.device)[:, None].long())
    return (logits >= own).sum(1) == 1


def _radii(eps: Sequence[float]) -> tuple[float, ...]:
    if not eps or not all(math.isfinite(e) and e >= 0 for e in eps):
        raise ArgumentError(f"`eps` lists finite radii >= 0, got {list(eps)}.")
    return tuple(float(e) for e in eps)


def _shares(sums: list[float], level: float) -> tuple[Proportion, ...]:
    *counts, total = sums
    return tuple(Proportion.of(round(count), round(total), level) for count in counts)


def _chosen(given: Bound | None, kept: Bound | None) -> Bound:
    found = kept if given is None else given
    if found is None:
        raise ArgumentError("A certificate needs a constant: give `bound` when the metric is made, or to `update`.")
    return found
