"""Operators made of operators: their products and parts, and the one place that knows how questions pass through them.

A question about operators (`depth`, `magnitude`, `frobenius`, ...) is a function that dispatches on the type. It states
its answers for leaves; `fold` registers how answers for parts combine, `rebuild` that the answer is the same composite
of the parts' answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar, final

from torch import Tensor

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Shape, Sum
from lipkit.linops.block import BlockColumn, BlockDiagonal, BlockRow
from lipkit.linops.elementary import Permute, Reshape
from lipkit.linops.sweep import Sweep

if TYPE_CHECKING:
    from functools import _SingleDispatchCallable as Question

Answer = TypeVar("Answer")


@final
@dataclass(frozen=True, eq=False)
class StatedRounding(LinearOperator):
    """`inner`, evaluated with an error of at most gamma_roundings * size in the spectral norm.

    A long product is far more accurate than the product of the sizes of its factors says, and whoever knows the norms
    of its parts can state it here. It is a statement about these tensors: with other ones it must be made anew.

    Args:
        inner: the operator.
        roundings: the longest chain of rounded operations.
        size: the sum over all stages of what the stage's rounding errors are relative to, times the norms of the parts
            before and behind it.
    """

    inner: LinearOperator
    roundings: int
    size: float

    @property
    def in_shape(self) -> Shape:
        return self.inner.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.inner.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.inner._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner._adjoint(y)


_COMPOSITES = (Adjoint, BlockColumn, BlockDiagonal, BlockRow, Compose, Scaled, StatedRounding, Sum, Sweep)


def parts_of(op: LinearOperator) -> tuple[LinearOperator, ...]:
    """The operators that a composite is made of; none for a leaf."""
    match op:
        case Adjoint(inner) | Scaled(_, inner) | StatedRounding(inner):
            return (inner,)
        case Compose(first, second) | Sum(first, second):
            return (first, second)
        case BlockRow(parts) | BlockColumn(parts) | BlockDiagonal(parts):
            return parts
        case Sweep(edges):
            return tuple(edge for _, _, edge in edges)
        case _:
            return ()


def with_parts(op: LinearOperator, parts: Sequence[LinearOperator]) -> LinearOperator:
    """The same composite of other parts, given in the order of `parts_of`."""
    match op:
        case Adjoint():
            return parts[0].T
        case Scaled() | StatedRounding():
            return replace(op, inner=parts[0])
        case Compose():
            return Compose(*parts)
        case Sum():
            return Sum(*parts)
        case BlockRow() | BlockColumn() | BlockDiagonal():
            return replace(op, parts=tuple(parts))
        case Sweep(edges):
            return replace(op, edges=tuple((k, j, part) for (k, j, _), part in zip(edges, parts, strict=True)))
        case _:
            return op


@final
@dataclass(frozen=True)
class Rules(Generic[Answer]):
    """How answers for the parts of a composite combine; a rule that is None leaves the question's general answer.

    An adjoint has the answer of its operator, and so has one whose rounding is stated. The values of a `Sweep` flow
    along its edges by `compose` and `add`.
    """

    scale: Callable[[Scaled, Answer], Answer]
    compose: Callable[[Answer, Answer], Answer] | None = None
    add: Callable[[Answer, Answer], Answer] | None = None
    concatenate: Callable[[Sequence[Answer]], Answer] | None = None
    diagonal: Callable[[Sequence[Answer]], Answer] | None = None


def fold(question: "Question[Answer]", rules: Rules[Answer]) -> None:
    """Register the rules for all composites; what is registered afterwards comes first."""

    def inner(op: Adjoint | StatedRounding) -> Answer:
        return question(op.inner)

    question.register(Adjoint, inner)
    question.register(StatedRounding, inner)
    question.register(Scaled, lambda op: rules.scale(op, question(op.inner)))
    compose, add, concatenate, diagonal = rules.compose, rules.add, rules.concatenate, rules.diagonal
    if compose is not None:
        question.register(Compose, lambda op: compose(question(op.outer), question(op.inner)))
    if add is not None:
        question.register(Sum, lambda op: add(question(op.left), question(op.right)))
    if compose is not None and add is not None:
        question.register(Sweep, lambda op: flow(op, question, compose, add))
    if concatenate is not None:
        question.register(BlockRow, lambda op: concatenate([question(part) for part in op.parts]))
        question.register(BlockColumn, lambda op: concatenate([question(part) for part in op.parts]))
    if diagonal is not None:
        question.register(BlockDiagonal, lambda op: diagonal([question(part) for part in op.parts]))


def flow(
    op: Sweep,
    question: Callable[[LinearOperator], Answer],
    compose: Callable[[Answer, Answer], Answer],
    add: Callable[[Answer, Answer], Answer],
    backwards: bool = False,
) -> Answer:
    """The answer at the end of a linear graph from those for its edges; backwards, at its start."""
    found: dict[int, Answer] = {}
    for k, j, edge in reversed(op.edges) if backwards else op.edges:
        start, end = (k, j) if backwards else (j, k)
        through = compose(question(edge), found[start]) if start in found else question(edge)
        found[end] = add(found[end], through) if end in found else through
    return found[op.source if backwards else op.sink]


def rebuild(
    question: "Question[LinearOperator]",
    step: Callable[..., LinearOperator] | None = None,
    composites: Sequence[type[LinearOperator]] = _COMPOSITES,
) -> None:
    """Register that the answer for these composites is the same composite of the answers of `step` for its parts."""
    ask = question if step is None else step
    for kind in composites:
        question.register(kind, lambda op, *rest: with_parts(op, [ask(part, *rest) for part in parts_of(op)]))


def factors(op: LinearOperator) -> list[LinearOperator]:
    """The factors of a product, outermost first; an operator that is none is its own."""
    return [*factors(op.outer), *factors(op.inner)] if isinstance(op, Compose) else [op]


def product(outer: LinearOperator, inner: LinearOperator) -> LinearOperator:
    """outer @ inner, the same map, with adjacent reshapes and permutations merged and identities dropped.

    Nothing is multiplied out, so nothing is rounded, and convolutions, matrices and diagonals stay what they are.
    """
    return multiply_factors((*factors(outer), *factors(inner)), _merge)


def multiply_factors(
    chain: Sequence[LinearOperator], merge: Callable[[LinearOperator, LinearOperator], LinearOperator | None]
) -> LinearOperator:
    """The product of a chain, outermost first, where `merge` makes one operator of two neighbours or answers None."""
    merged: list[LinearOperator] = []
    for factor in chain:
        merged.append(factor)
        while len(merged) > 1 and (one := merge(merged[-2], merged[-1])) is not None:
            merged[-2:] = [one]
    kept = [factor for factor in merged if not _is_identity(factor)] or merged[:1]
    result = kept[0]
    for factor in kept[1:]:
        result = Compose(result, factor)
    return result


def _is_identity(op: LinearOperator) -> bool:
    return isinstance(op, Reshape) and op.source == op.target


def _merge(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    match outer, inner:
        case Reshape(_, target), Reshape(source, _):
            return Reshape(source, target)
        case Permute(_, after), Permute(shape, before):
            return Permute(shape, tuple(before[axis] for axis in after))
        case Permute(shape, order), _ if order == tuple(range(len(shape))):
            return inner
        case _, Permute(shape, order) if order == tuple(range(len(shape))):
            return outer
        case _:
            return None
