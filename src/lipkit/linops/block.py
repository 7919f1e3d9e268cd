"""Several operators as one: side by side, on top of each other, and along the diagonal."""

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape

Parts = tuple[LinearOperator, ...]


@final
@dataclass(frozen=True, eq=False)
class BlockRow(LinearOperator):
    """[A_1 ... A_m]: the flattened inputs lie one after the other in one vector, the outputs are added."""

    parts: Parts

    def __post_init__(self) -> None:
        _check_common("BlockRow", "out_shape", [part.out_shape for part in self.parts])

    @property
    def in_shape(self) -> Shape:
        return (sum(part.in_size for part in self.parts),)

    @property
    def out_shape(self) -> Shape:
        return self.parts[0].out_shape

    def _apply(self, x: Tensor) -> Tensor:
        pieces = x.split([part.in_size for part in self.parts], dim=1)
        blocks = zip(self.parts, pieces, strict=True)
        return reduce(add, [part.apply(piece.reshape(x.shape[0], *part.in_shape)) for part, piece in blocks])

    def _adjoint(self, y: Tensor) -> Tensor:
        return torch.cat([part.adjoint(y).reshape(y.shape[0], part.in_size) for part in self.parts], dim=1)


@final
@dataclass(frozen=True, eq=False)
class BlockColumn(LinearOperator):
    """[A_1; ...; A_m]: one input, the flattened outputs lie one after the other in one vector."""

    parts: Parts

    def __post_init__(self) -> None:
        _check_common("BlockColumn", "in_shape", [part.in_shape for part in self.parts])

    @property
    def in_shape(self) -> Shape:
        return self.parts[0].in_shape

    @property
    def out_shape(self) -> Shape:
        return (sum(part.out_size for part in self.parts),)

    def _apply(self, x: Tensor) -> Tensor:
        return torch.cat([part.apply(x).reshape(x.shape[0], part.out_size) for part in self.parts], dim=1)

    def _adjoint(self, y: Tensor) -> Tensor:
        return BlockRow(tuple(part.T for part in self.parts)).apply(y)


@final
@dataclass(frozen=True, eq=False)
class BlockDiagonal(LinearOperator):
    """diag(A_1, ..., A_m) for operators of one shape: (m, *in_shape) -> (m, *out_shape), the k-th slice by A_k."""

    parts: Parts

    def __post_init__(self) -> None:
        _check_common("BlockDiagonal", "in_shape", [part.in_shape for part in self.parts])
        _check_common("BlockDiagonal", "out_shape", [part.out_shape for part in self.parts])

    @property
    def in_shape(self) -> Shape:
        return (len(self.parts), *self.parts[0].in_shape)

    @property
    def out_shape(self) -> Shape:
        return (len(self.parts), *self.parts[0].out_shape)

    def _apply(self, x: Tensor) -> Tensor:
        return torch.stack([part.apply(x[:, k]) for k, part in enumerate(self.parts)], dim=1)

    def _adjoint(self, y: Tensor) -> Tensor:
        return torch.stack([part.adjoint(y[:, k]) for k, part in enumerate(self.parts)], dim=1)


def _check_common(name: str, what: str, shapes: list[Shape]) -> None:
    if not shapes:
        raise ArgumentError(f"{name} needs at least one operator, got none.")
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"The parts of {name} must have one {what}, got {sorted(set(shapes))}.")
