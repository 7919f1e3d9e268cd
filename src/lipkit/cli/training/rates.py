"""Learning rates of several optimizers, which follow one schedule."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError


@final
class Rates:
    """The learning rates that a recipe gave its optimizers, which are multiplied by one factor at each step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._first = [[_check_rate(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]

    def scale(self, factor: float) -> None:
        """Set every rate to `factor` times its first value; rates that are tensors (for CUDA graphs) are refilled."""
        for optimizer, rates in zip(self._optimizers, self._first, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate * factor)
                else:
                    group["lr"] = rate * factor


def _check_rate(rate: float) -> float:
    if not 0 <= rate < math.inf:
        raise ArgumentError(f"A learning rate is a finite number of at least 0, got {rate}.")
    return rate
