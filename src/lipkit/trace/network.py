"""A model as linear operators between nonlinear nodes, and the builder that rules write it with."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, NeedsRegion, ShapeError
from lipkit.linops import LinearOperator, Padding, Reshape, Shape
from lipkit.linops.padding import Sides
from lipkit.trace.nodes import Activation, Identity, Node, Pointwise

Row = dict[int, LinearOperator]
_GIVE_A_REGION = "Give a bounded region, e.g. lipschitz(model, x, region=Ball(x, 0.5)), or `declared_lipschitz`."


@final
@dataclass(frozen=True)
class Origin:
    """Where a node comes from: the operation, the path of the module that ran it, and its source line."""

    op: str = ""
    module: str = ""
    line: str = ""

    def __str__(self) -> str:
        place = f" at {self.module}" if self.module else ""
        return f"{self.op or 'a node'}{place}{f' ({self.line})' if self.line else ''}"


@final
@dataclass(frozen=True, eq=False)
class Network:
    """y_0 = x;  z_k = sum_{j<k} A_kj y_j + b_k,  y_k = phi_k(z_k) for k = 1..K;  the output is z_{K+1}.

    `nodes[k - 1]` is phi_k, `blocks[k, j]` is A_kj, `biases[k]` is b_k (absent: zero). A row without blocks is a
    constant. Operators and biases hold the model's live tensors. Row K + 1 is the output; its shape is `target`.
    `unchecked` says why a captured network was not compared with the running model; it is empty if it was.
    """

    source: Shape
    nodes: tuple[Node, ...]
    blocks: Mapping[tuple[int, int], LinearOperator]
    biases: Mapping[int, Tensor] = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()
    target: Shape = ()
    unchecked: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        last = len(self.nodes) + 1
        for (k, j), op in self.blocks.items():
            if not 0 <= j < k <= last:
                raise ArgumentError(f"Block ({k}, {j}) must go forward, 0 <= j < k <= {last}.")
            if (op.in_shape, op.out_shape) != (self.shape_of(j), self.shape_into(k)):
                raise ShapeError(
                    f"Block ({k}, {j}) is {op}, but value {j} has shape {self.shape_of(j)} "
                    f"and row {k} has shape {self.shape_into(k)}."
                )
        if self.origins and len(self.origins) != len(self.nodes) + 1:
            raise ArgumentError(
                f"{len(self.nodes)} nodes and the output need as many origins, got {len(self.origins)}."
            )

    @property
    def sink(self) -> int:
        """The index of the output row, K + 1."""
        return len(self.nodes) + 1

    def shape_of(self, j: int) -> Shape:
        """Shape of y_j, without batch axis."""
        return self.source if j == 0 else self.nodes[j - 1].target

    def shape_into(self, k: int) -> Shape:
        """Shape of z_k, without batch axis."""
        return self.target if k == self.sink else self.nodes[k - 1].shape

    def row(self, k: int) -> Row:
        """The blocks of row k by their column, in order."""
        return {j: self.blocks[k, j] for j in sorted(col for row, col in self.blocks if row == k)}

    def rows(self) -> dict[int, Row]:
        """All rows by their index, in order, each with its blocks by column."""
        found: dict[int, Row] = {k: {} for k in range(1, self.sink + 1)}
        for k, j in sorted(self.blocks):
            found[k][j] = self.blocks[k, j]
        return found

    def origin(self, k: int) -> Origin:
        """Where row k comes from."""
        return self.origins[k - 1] if self.origins else Origin(f"row {k}")

    def __call__(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The function itself on a batch of inputs, evaluated through the normal form, in the dtype of x."""
        return self.values(x)[self.sink]

    def values(
        self, x: Float[Tensor, "batch ..."], change: Callable[[Tensor], Tensor] | None = None
    ) -> list[Float[Tensor, "batch ..."]]:
        """y_0, ..., y_K and the output, on a batch of inputs; `change` takes the place of each where it is given."""
        if tuple(x.shape[1:]) != self.source:
            raise ShapeError(f"The network takes (batch, {', '.join(map(str, self.source))}), got {tuple(x.shape)}.")
        found = [x if change is None else change(x)]
        for k, row in self.rows().items():
            terms = [self.biases[k].to(x)] if k in self.biases else []
            terms += [op.to(x.dtype).apply(found[j]) for j, op in row.items()]
            if len(terms) < 2:
                # A single term may share memory with an earlier value, and nodes may be foreign modules.
                terms.insert(0, x.new_zeros((x.shape[0], *self.shape_into(k))))
            z = sum(terms[1:], terms[0])
            y = z if k == self.sink else self.nodes[k - 1](z)
            found.append(y if change is None else change(y))
        return found

    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors behind it: of the blocks, of the biases, of the nodes."""
        found: list[Tensor] = []
        self.map(lambda t: (found.append(t), t)[1])
        return tuple(found)

    def map(self, fn: Callable[[Tensor], Tensor]) -> "Network":
        """The same network over `fn(tensor)` for each of its tensors."""
        return replace(
            self,
            blocks={at: self.blocks[at].map(fn) for at in sorted(self.blocks)},
            biases={k: fn(self.biases[k]) for k in sorted(self.biases)},
            nodes=tuple(node.map(fn) for node in self.nodes),
        )

    @property
    def device(self) -> torch.device:
        """The device of its operators' tensors, or else of any other (cpu if there are none)."""
        operators = (op.device for op in self.blocks.values() if op.tensors())
        others = (t.device for t in self.tensors())
        return next(itertools.chain(operators, others), torch.device("cpu"))

    def detach(self) -> "Network":
        """The same network without gradients to its tensors."""
        return self.map(Tensor.detach)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Network":
        """The same network in another precision or on another device; index tensors keep their dtype."""

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        return self.map(move)

    def then(self, op: LinearOperator) -> "Network":
        """x -> op(network(x)): what one asks of an output, such as the difference of two logits."""
        sink = self.sink
        blocks = {at: op @ block if at[0] == sink else block for at, block in self.blocks.items()}
        biases = {k: op.to(b.dtype).apply(b) if k == sink else b for k, b in self.biases.items()}
        return replace(self, blocks=blocks, biases=biases, target=op.out_shape)

    def without_constant(self, p: float) -> list[int]:
        """The rows whose nodes have no finite constant in l_p on their domains."""
        return [k for k, node in enumerate(self.nodes, 1) if not bool(node.log_constant(p).detach() < torch.inf)]

    def require_constants(self, p: float, remedy: str = _GIVE_A_REGION) -> None:
        """Refuse, naming all of them, nodes that have no finite constant in l_p on their domains."""
        if found := Counter(str(self.origin(k)) for k in self.without_constant(p)):
            places = "; ".join(place if n == 1 else f"{place}, {n} times" for place, n in found.items())
            raise NeedsRegion(f"{places}: not Lipschitz in l{p:g} on the whole space.", remedy)


def chain(operators: Sequence[LinearOperator], activation: Activation, biases: Iterable[Tensor | None] = ()) -> Network:
    """A_L f(... f(A_1 x + b_1) ...) + b_L: the plain feed-forward network."""
    if not operators:
        raise ArgumentError("A chain needs at least one operator, got none.")
    nodes = tuple(Pointwise(activation, op.out_shape) for op in operators[:-1])
    known = {k: b for k, b in enumerate(biases, start=1) if b is not None}
    blocks = {(k, k - 1): op for k, op in enumerate(operators, start=1)}
    return Network(operators[0].in_shape, nodes, blocks, known, target=operators[-1].out_shape)


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
class Refusal(Exception):
    """A rule meets a case it cannot prove; with the reason and what to do about it. The next rule is tried, if any."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def constant(value: object, what: str) -> Any:
    """An argument that must not depend on the input."""
    if isinstance(value, Ref):
        raise Refusal(f"{what} depends on the input", "make it a parameter or a buffer, or replace the layer")
    return value


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
