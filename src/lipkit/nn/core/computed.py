"""Tensors that are computed from parameters each time they are used, unless they are held."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipkit._runtime import is_compiling
from lipkit.nn.core.precision import dtype_in_use


class Computed(nn.Module):
    """A module whose result depends on parameters alone: the weights of constrained layers.

    There is no cache: in-place updates of parameters cannot be noticed reliably (fused optimizers and writes to
    `.data` leave no trace), so the result is computed anew at every call, in training and in evaluation. Within
    `frozen` the first result of each type is held (`holding`), within `batched` one that was computed with others,
    together with the parameters it is of: given others, a module computes. The type counts because autocast may go on
    and off; while a program is traced nothing is taken in.
    """

    held: dict[torch.dtype, tuple[tuple[Tensor, ...], Tensor]]
    holding: bool
    # Whether something was held and other parameters came.
    several: bool

    def __init__(self) -> None:
        super().__init__()
        self.held = {}
        self.holding = self.several = False

    def __getstate__(self) -> dict[str, object]:
        """Without what is held: copies, and what is saved, are outside the block that holds."""
        return {**vars(self), "held": {}, "holding": False, "several": False}

    def release(self) -> None:
        """Hold nothing any more."""
        self.held.clear()
        self.holding = self.several = False

    @abstractmethod
    def compute(self, *parameters: Tensor) -> Tensor:
        """The tensor, from scratch."""

    def forward(self, *parameters: Tensor) -> Tensor:
        """The held tensor, or a new one."""
        dtype = dtype_in_use(parameters[0])
        if dtype in self.held:
            known, found = self.held[dtype]
            others = any(a is not b for a, b in zip(known, parameters, strict=True))
            if is_compiling():
                # Tracers have stand-ins for parameters, which cannot be told apart.
                others = self.several
            # Others come by `torch.func.functional_call`, or where one module serves two layers.
            self.several = others or self.several
            return self.compute(*parameters) if others else found
        if not self.holding or is_compiling():
            return self.compute(*parameters)
        with torch.no_grad():
            found = self.compute(*parameters)
        self.held[dtype] = parameters, found
        return found
