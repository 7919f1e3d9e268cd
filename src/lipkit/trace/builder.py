"""A network under construction: rules add rows to it and pass references around."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.linops import LinearOperator, Padding, Reshape, Shape
from lipkit.linops.padding import Sides
from lipkit.trace.network import Network, Origin
from lipkit.trace.nodes import Identity, Node, Pointwise


@final
@dataclass(frozen=True)
class Ref:
    """A value of the network under construction; its shape is the full traced shape (batch axis of 1 included)."""

    index: int
    shape: Shape


@final
@dataclass(frozen=True)
class Padded:
    """A value before it was padded, and the padding: one pair (left, right) for each of the last axes."""

    inner: Ref
    sides: Sides
    mode: Padding


@final
class Builder:
    """Collects rows; every row is one operation, so that nothing is fused yet.

    A linear operation is a row whose node is the identity; a nonlinear one is a row whose block is the identity.
    `origin` is set by the caller before each operation and is stored with the rows the operation adds; `dtype` is the
    floating-point type of the operation's result in the model, for rules that depend on it.
    """

    def __init__(self, source: Shape) -> None:
        self.source = Ref(0, source)
        self.origin = Origin()
        self.dtype = torch.float64
        self._nodes: list[Node] = []
        self._blocks: dict[tuple[int, int], LinearOperator] = {}
        self._biases: dict[int, Tensor] = {}
        self._origins: list[Origin] = []
        self._padded: dict[int, Padded] = {}

    def linear(self, op: LinearOperator, x: Ref, bias: Tensor | None = None) -> Ref:
        """op(x) + bias; the bias has the shape of the result or broadcasts to it."""
        return self.affine([(op, x)], bias)

    def affine(self, terms: Sequence[tuple[LinearOperator, Ref]], bias: Tensor | None = None) -> Ref:
        """sum of op(x) over the terms, at least one, plus a bias; terms over one value are added up."""
        shape = terms[0][0].out_shape
        return self._add(Pointwise(Identity(), shape), terms, bias)

    def node(self, node: Node, x: Ref) -> Ref:
        """phi(x)."""
        return self._add(node, [(Reshape(x.shape, node.shape), x)], None)

    def constant(self, value: Tensor) -> Ref:
        """A value that does not depend on the input: a row without blocks."""
        return self._add(Pointwise(Identity(), tuple(value.shape)), [], value)

    def remember(self, x: Ref, padded: Padded) -> Ref:
        """Note that x is a padded value, for a convolution that pads by itself; gives x."""
        self._padded[x.index] = padded
        return x

    def padded(self, x: Ref) -> Padded | None:
        """The value that x was padded from, if it was."""
        return self._padded.get(x.index)

    def reshape(self, x: Ref, shape: Shape) -> Ref:
        """The same entries in another shape."""
        return x if x.shape == shape else self.linear(Reshape(x.shape, shape), x)

    def _add(self, node: Node, terms: Sequence[tuple[LinearOperator, Ref]], bias: Tensor | None) -> Ref:
        k = len(self._nodes) + 1
        for op, x in terms:
            if op.in_shape != x.shape:
                raise ShapeError(f"{op} cannot be applied to a value of shape {x.shape}.")
            known = self._blocks.get((k, x.index))
            self._blocks[k, x.index] = op if known is None else known + op
        if bias is not None:
            self._biases[k] = bias.expand(node.shape)
        self._nodes.append(node)
        self._origins.append(self.origin)
        return Ref(k, node.target)

    def finish(self, output: Ref, shape: Shape) -> Network:
        """The network that ends in `output`, reshaped; rows it does not depend on are left out."""
        columns: dict[int, list[int]] = {}
        for k, j in self._blocks:
            columns.setdefault(k, []).append(j)
        needed = {output.index}
        for k in range(output.index, 0, -1):
            if k in needed:
                needed.update(columns.get(k, ()))
        kept = [k for k in sorted(needed) if k]
        new = {0: 0, **{k: i for i, k in enumerate(kept, start=1)}}
        sink = len(kept) + 1
        blocks = {(new[k], new[j]): op for (k, j), op in self._blocks.items() if k in new}
        blocks[sink, new[output.index]] = Reshape(output.shape, shape)
        return Network(
            self.source.shape,
            tuple(self._nodes[k - 1] for k in kept),
            blocks,
            {new[k]: b for k, b in self._biases.items() if k in new},
            (*(self._origins[k - 1] for k in kept), Origin("output")),
            shape,
        )
