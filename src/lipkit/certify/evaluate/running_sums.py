"""Sums over samples that are fed batch by batch, overall and for each class, over all processes."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.errors import ArgumentError

Result = TypeVar("Result")


class RunningMetric(ABC, Generic[Result]):
    """Sums over samples. `update` adds a batch; `compute` sums over all processes first and leaves the state alone.

    With `classes`, the number of classes, `per_class` tells the same of the samples of each label. Results of several
    processes are asked for by all of them.
    """

    def __init__(self, columns: int, classes: int | None) -> None:
        if classes is not None and not (type(classes) is int and classes >= 2):
            raise ArgumentError(f"`classes` is the number of classes, 2 or more, or None, got {classes!r}.")
        self._classes = classes
        # A row for all samples and one for each class; the last column counts the samples.
        self._sums = torch.zeros(1 + (classes or 0), columns + 1, dtype=torch.float64)

    def reset(self) -> None:
        """Forget all samples."""
        self._sums = torch.zeros_like(self._sums)

    @abstractmethod
    def update(self, given: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"], /) -> None:
        """Add a batch: logits, or what the metric says that it takes, with a label for each sample."""

    def compute(self) -> Result:
        """The result over all samples."""
        return self._result(self._all()[0])

    def per_class(self) -> tuple[Result, ...]:
        """The result over the samples of each label, from 0 on."""
        if self._classes is None:
            raise ArgumentError("Results for each class need their number; give `classes` when the metric is made.")
        return tuple(self._result(row) for row in self._all()[1:])

    @abstractmethod
    def _result(self, sums: list[float]) -> Result:
        """The metric from sums over samples; the last sum is their number."""

    def _add(self, found: Float[Tensor, "batch columns"], labels: Int[Tensor, " batch"]) -> None:
        rows = torch.cat([found.detach().double(), found.new_ones(len(found), 1).double()], dim=1).cpu()
        new = torch.zeros_like(self._sums)
        new[0] = rows.sum(0)
        if self._classes is not None:
            if len(labels) and int(labels.max()) >= self._classes:
                raise ArgumentError(f"Labels must lie in 0..{self._classes - 1}, got {int(labels.max())}.")
            new[1:].index_add_(0, labels.long().cpu(), rows)
        self._sums = self._sums + new

    def _all(self) -> list[list[float]]:
        found = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            # NCCL sums on GPUs only.
            where = torch.device("cuda") if dist.get_backend() == dist.Backend.NCCL else found.device
            found = found.to(where)
            dist.all_reduce(found)
        return found.tolist()
