"""Tensors that are computed from parameters each time they are used, unless they are held."""

from abc import abstractmethod

import torch
from torch import Tensor, nn


class Computed(nn.Module):
    """A module whose result depends on parameters alone: the weights of constrained layers.

    There is no cache: in-place updates of parameters cannot be noticed reliably (fused optimizers and writes to
    `.data` leave no trace), so the result is computed anew at every call, in training and in evaluation. Within
    `frozen` the first result is held (`holding`), within `batched` one that was computed with others.
    """

    held: Tensor | None
    holding: bool

    def __init__(self) -> None:
        super().__init__()
        self.held = None
        self.holding = False

    @abstractmethod
    def compute(self, *parameters: Tensor) -> Tensor:
        """The tensor, from scratch."""

    def forward(self, *parameters: Tensor) -> Tensor:
        """The held tensor, or a new one."""
        if self.held is not None:
            return self.held
        if not self.holding:
            return self.compute(*parameters)
        with torch.no_grad():
            self.held = self.compute(*parameters)
        return self.held
