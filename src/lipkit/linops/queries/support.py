"""Which outputs an operator can reach at all."""

from dataclasses import dataclass
from functools import singledispatch
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from lipkit.linops._base import LinearOperator, Scaled, Shape
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.composites import rebuild
from lipkit.linops.elementary import Diagonal, Index, Permute, Reshape


def support(op: LinearOperator) -> Bool[Tensor, "..."]:
    """True for every output that can be non-zero; False only where the structure forces a zero for all weights."""
    return propagate(op, torch.ones(op.in_shape, dtype=torch.bool, device=op.device))


def propagate(op: LinearOperator, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """The outputs that can be non-zero when the inputs outside `mask` are zero."""
    # Numbers >= 0 do not cancel: what is non-zero in the end is what can be reached.
    return _reach(op).apply(mask.to(torch.float64)) != 0


@singledispatch
def _reach(op: LinearOperator) -> LinearOperator:
    """An operator on numbers >= 0 that is positive where `op` can be non-zero; by default everywhere, or nowhere."""
    return _Everything(op.in_shape, op.out_shape)


@_reach.register(Reshape)
@_reach.register(Permute)
@_reach.register(Index)
def _move(op: Reshape | Permute | Index) -> LinearOperator:
    return op


@_reach.register(Diagonal)
@_reach.register(BatchNorm)
def _entrywise(op: Diagonal | BatchNorm) -> LinearOperator:
    return Reshape(op.shape, op.shape)


rebuild(_reach)


@_reach.register(Scaled)
def _scaled(op: Scaled) -> LinearOperator:
    return _reach(op.inner)


@final
@dataclass(frozen=True, eq=False)
class _Everything(LinearOperator):
    """One everywhere if any entry is positive, else zero: every output may depend on every input."""

    source: Shape
    goal: Shape

    @property
    def in_shape(self) -> Shape:
        return self.source

    @property
    def out_shape(self) -> Shape:
        return self.goal

    def _apply(self, x: Tensor) -> Tensor:
        return self._spread(x, self.goal)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._spread(y, self.source)

    def _spread(self, x: Tensor, shape: Shape) -> Tensor:
        reached = (x.flatten(1) > 0).any(1).to(x.dtype)
        return reached.reshape(-1, *(1,) * len(shape)).expand(-1, *shape)
