"""Tensors that are computed from parameters each time they are used, unless they are held."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipkit.nn.precision import dtype_in_use


class Computed(nn.Module):
    """A module whose result depends on parameters alone: the weights of constrained layers.

    There is no cache: in-place updates of parameters cannot be noticed reliably (fused optimizers and writes to
    `.data` leave no trace), so the result is computed anew at every call, in training and in evaluation. Within
    `frozen` the first result of each type is held (`holding`), within `batched` one that was computed with others. The
    type counts because autocast may go on and off; while a program is traced nothing is taken in.
    """

    held: dict[torch.dtype, Tensor]
    holding: bool

    def __init__(self) -> None:
        super().__init__()
        self.held = {}
        self.holding = False

    def __getstate__(self) -> dict[str, object]:
        """Without what is held: copies, and what is saved, are outside the block that holds."""
        return {**vars(self), "held": {}, "holding": False}

    @abstractmethod
    def compute(self, *parameters: Tensor) -> Tensor:
        """The tensor, from scratch."""

    def forward(self, *parameters: Tensor) -> Tensor:
        """The held tensor, or a new one."""
        dtype = dtype_in_use(parameters[0])
        if dtype in self.held:
            return self.held[dtype]
        if not self.holding or torch.compiler.is_compiling():
            return self.compute(*parameters)
        with torch.no_grad():
            self.held[dtype] = self.compute(*parameters)
        return self.held[dtype]
