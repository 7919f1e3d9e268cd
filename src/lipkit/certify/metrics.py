"""Metrics that are fed batch by batch: reset, update, compute; summed over all processes of a distributed run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.bound import Bound
from lipkit.certify.evaluation import Share
from lipkit.certify.intervals import check_level
from lipkit.certify.radius import check_classified, radius
from lipkit.errors import ArgumentError


class RunningMetric(ABC):
    """Sums over samples. `update` adds a batch; `compute` sums over all processes first and leaves the state alone."""

    def __init__(self, size: int) -> None:
        self._sums = torch.zeros(size, dtype=torch.float64)

    def reset(self) -> None:
        """Forget all samples."""
        self._sums = torch.zeros_like(self._sums)

    def _add(self, sums: Float[Tensor, " size"]) -> None:
        self._sums = self._sums + sums.detach().to(self._sums)

    def _all(self) -> list[float]:
        found = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            # NCCL sums on GPUs only.
            where = torch.device("cuda") if dist.get_backend() == dist.Backend.NCCL else found.device
            found = found.to(where)
            dist.all_reduce(found)
        return found.tolist()

    @abstractmethod
    def update(self, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> None:
        """Add a batch."""


@final
class CleanAccuracy(RunningMetric):
    """The share of samples whose largest logit is that of the label; ties count as wrong, as in a certificate."""

    def __init__(self, level: float = 0.95) -> None:
        super().__init__(2)
        self._level = check_level(level)

    def update(self, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> None:
        """Add a batch."""
        check_classified(logits, labels)
        labels = labels.to(logits.device)
        own = logits.gather(1, labels[:, None].long())
        right = (logits >= own).sum(1) == 1
        self._add(torch.stack([right.sum(), torch.tensor(len(labels), device=right.device)]).double())

    def compute(self) -> Share:
        """The share, with its interval."""
        count, total = self._all()
        return Share.of(round(count), round(total), self._level)


@final
class CertifiedAccuracy(RunningMetric):
    """The share of samples with a certified radius above each of `eps`.

    `bound` is as in `radius`; during training its constant changes, so `update` may be given a new one. `error` is how
    far logits may be off: those of a float32 model are not exact, and a certificate that counts it uses `accuracy`.
    """

    def __init__(
        self, eps: Sequence[float], bound: Bound | None = None, error: float = 0.0, level: float = 0.95
    ) -> None:
        if not eps or not all(math.isfinite(e) and e >= 0 for e in eps):
            raise ArgumentError(f"`eps` lists finite radii >= 0, got {list(eps)}.")
        super().__init__(len(eps) + 1)
        self.eps = tuple(float(e) for e in eps)
        self._bound, self._error, self._level = bound, error, check_level(level)

    def update(
        self, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], bound: Bound | None = None
    ) -> None:
        """Add a batch."""
        found = radius(logits, labels, _chosen(bound, self._bound), error=self._error)
        counts = [found.certified(e).sum() for e in self.eps]
        self._add(torch.stack([*counts, torch.tensor(len(labels), device=logits.device)]).double())

    def compute(self) -> tuple[Share, ...]:
        """A share for each of `eps`."""
        *counts, total = self._all()
        return tuple(Share.of(round(count), round(total), self._level) for count in counts)


@final
class AverageRadius(RunningMetric):
    """The mean certified radius, with 0 for samples that are classified wrongly."""

    def __init__(self, bound: Bound | None = None, error: float = 0.0) -> None:
        super().__init__(2)
        self._bound, self._error = bound, error

    def update(
        self, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], bound: Bound | None = None
    ) -> None:
        """Add a batch."""
        found = radius(logits, labels, _chosen(bound, self._bound), error=self._error)
        self._add(torch.stack([found.value.sum(), found.value.new_tensor(len(labels))]))

    def compute(self) -> float:
        """The mean; NaN of nothing."""
        total, count = self._all()
        return total / count if count else math.nan


def _chosen(given: Bound | None, kept: Bound | None) -> Bound:
    found = kept if given is None else given
    if found is None:
        raise ArgumentError("A certificate needs a constant: give `bound` when the metric is made, or to `update`.")
    return found
