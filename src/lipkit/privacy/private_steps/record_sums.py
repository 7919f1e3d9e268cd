"""Sums of the gradients of records, in pieces, each record within its limit whatever autograd gives."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from lipkit.privacy.gradient_clipping import Clip, Quantile
from lipkit.privacy.private_steps.accepted_records import summed


@final
@dataclass(frozen=True, eq=False)
class RecordSums:
    """sum_i d loss_i / d w for the trained tensors w of a condensed model, where each loss_i is of record i alone.

    A gradient that autograd makes NaN or infinite, as that of a norm at zero, counts as zero, for its record alone: a
    piece with such a sum is halved until the record is found. Cost: one pass forward and back a piece.
    """

    plain: nn.Module
    loss: nn.Module
    clip: Clip | None

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.plain.named_parameters() if p.requires_grad}

    def add(self, x: Tensor, y: Tensor, totals: dict[str, Tensor], share: float = 1.0) -> float:
        """Add the gradients of these records to `totals`, in float64; the centered count of `Quantile` is returned.

        Both are multiplied by `share`: that of one view of each record, where there are several.
        """
        if not len(x):
            return 0.0
        with torch.enable_grad():
            outputs = self.plain(x)
        ends, count = self._ends(outputs, y)
        gradients = torch.autograd.grad(outputs, list(self._tensors.values()), ends, materialize_grads=True)
        # A sum is finite only if all its terms are; one that overflows costs time, nothing else.
        if len(x) > 1 and not all(bool(torch.isfinite(g.sum())) for g in gradients):
            del outputs, ends, gradients
            half = len(x) // 2
            return self.add(x[:half], y[:half], totals, share) + self.add(x[half:], y[half:], totals, share)
        for name, gradient in zip(self._tensors, gradients, strict=True):
            # Only a single record still has entries that are not finite here.
            totals[name].add_(gradient if len(x) > 1 else gradient.nan_to_num(0.0, 0.0, 0.0), alpha=share)
        return count * share

    def _ends(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """The gradients in the outputs, clipped; and how many lie below the limit, less half of all."""
        ends = outputs.detach().requires_grad_()
        with torch.enable_grad():
            value = summed(self.loss, ends, y)
        (raw,) = torch.autograd.grad(value, ends)
        rows = raw.reshape(len(raw), -1)
        rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        count = 0.0
        if isinstance(self.clip, Quantile):
            count = self.clip.count(torch.linalg.vector_norm(rows.double(), dim=1))
        raw = rows.reshape(raw.shape)
        if self.clip is None:
            return raw, count
        with torch.enable_grad():
            passed = self.clip(ends)
        (clipped,) = torch.autograd.grad(passed, ends, raw)
        return clipped, count
