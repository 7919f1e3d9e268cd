"""Complex values between a real input and a real output, as pairs of real numbers: linear operations, and moves.

The operation itself is run on pairs, so there is nothing to get wrong in a second description.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lipkit.linops import Index, LinearFunction, LinearOperator, Reshape, Shape
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules.moving import Mover, movements

ON_PARTS = "take the real parts, the imaginary parts or the absolute values first (.real, .imag, .abs())"


@final
@dataclass(frozen=True)
class Paired:
    """A complex value of a network under construction: its real and imaginary parts along a last axis of two."""

    parts: Ref

    @property
    def shape(self) -> Shape:
        """The shape of the complex value itself."""
        return self.parts.shape[:-1]


Value = Ref | Paired
Result = Value | tuple[Value, ...]
# Called with the builder, the operation, its arguments, and what it gives: (builder, op, args, kwargs, like).
ComplexRule = Callable[[Builder, OpOverload, tuple[Any, ...], dict[str, Any], Any], Result]


@final
@dataclass(frozen=True, eq=False)
class _PairedSlot:
    """An operation as a function of one of its leaves, over pairs of real numbers where that or the result is complex.

    All other leaves that the operation is linear in (`zeros`) are zero; those at `held` are constant tensors, which
    come in as parameters, complex ones as pairs. `result` chooses one of several results.
    """

    op: OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    at: int
    zeros: tuple[int, ...]
    held: tuple[int, ...]
    paired: tuple[bool, ...]
    result: int | None

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        constants = [
            torch.view_as_complex(p.to(x.dtype)) if pair else p.to(x.dtype) if p.is_floating_point() else p
            for p, pair in zip(parameters, self.paired, strict=True)
        ]

        def one(sample: Tensor) -> Tensor:
            leaves = list(self.leaves)
            for i, value in zip(self.held, constants, strict=True):
                leaves[i] = value
            for i in self.zeros:
                leaves[i] = _zeros(self.leaves[i], sample)
            leaves[self.at] = torch.view_as_complex(sample) if isinstance(self.leaves[self.at], Paired) else sample
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            found = self.op(*args, **kwargs)
            return as_pairs(found if self.result is None else found[self.result])

        return torch.func.vmap(one)(x) if x.shape[0] else x.new_zeros((0, *one(x.new_zeros(x.shape[1:])).shape))


def as_pairs(value: Tensor) -> Tensor:
    """A complex tensor as real numbers with a last axis of two, any other as it is."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _zeros(leaf: Any, like: Tensor) -> Tensor:
    """Zeros in the place of a value or a constant."""
    paired = isinstance(leaf, Paired) or (isinstance(leaf, Tensor) and leaf.is_complex())
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    return torch.zeros(leaf.shape, dtype=dtype.to_complex() if paired else dtype, device=like.device)


def linear_on_pairs(at: tuple[int, ...]) -> ComplexRule:
    """The rule of an operation that is jointly linear in the arguments at `at` when all others are constant."""

    def rule(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
        # A type to compute in is that of the model; rows are evaluated in any.
        kept = {name: value for name, value in kwargs.items() if name != "dtype"}
        filled = tuple(_tensors(value) if i in at else value for i, value in enumerate(args))
        counts = [len(pytree.tree_leaves(value)) for value in filled]
        linear = {sum(counts[:i]) + k for i in at if i < len(filled) for k in range(counts[i])}
        if not isinstance(like, tuple | list):
            return rows_on_pairs(b, op, filled, kept, linear, None, like)
        return tuple(rows_on_pairs(b, op, filled, kept, linear, i, part) for i, part in enumerate(like))

    return rule


def _tensors(value: Any) -> Any:
    """Numbers as tensors, so that what they add is found."""
    if not isinstance(value, int | float | complex):
        return value
    return torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


def rows_on_pairs(
    b: Builder,
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    linear: set[int],
    result: int | None,
    like: Tensor,
) -> Value:
    """Rows for one result of an operation that is jointly linear in the leaves of (args, kwargs) at `linear`.

    Args:
        result: Which one of several results; None where there is one.
        like: What torch gives, for its shape and type.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    moving = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Ref | Paired)]
    if not linear.issuperset(moving):
        raise Refusal("depends on the input in an argument that it is not linear in", ON_PARTS)
    added = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i in linear]
    held = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in linear)
    paired = tuple(leaves[i].is_complex() for i in held)
    # Real numbers alone, because an operator over complex ones would have the norm of the complex space.
    parameters = tuple(as_pairs(leaves[i]) for i in held)
    terms: list[tuple[LinearOperator, Ref]] = []
    for i in moving:
        others = tuple(j for j in (*moving, *added) if j != i)
        slot = _PairedSlot(op, tuple(leaves), spec, i, others, held, paired, result)
        ref = leaves[i].parts if isinstance(leaves[i], Paired) else leaves[i]
        target = (*like.shape, 2) if like.is_complex() else tuple(like.shape)
        found = LinearFunction(slot, ref.shape, target, parameters)
        with torch.no_grad():
            zero = torch.zeros((1, *ref.shape), dtype=torch.float64, device=like.device)
            if bool((found.to(torch.float64, like.device).apply(zero) != 0).any()):
                raise Refusal("fills in constants that are not zero", "fill with zeros and add the constants")
        terms.append((found, ref))
    bias = None
    if added:
        filled = [_zeros(leaf, leaves[added[0]]) if isinstance(leaf, Ref | Paired) else leaf for leaf in leaves]
        given, named = pytree.tree_unflatten(filled, spec)
        whole = op(*given, **named)
        part = whole if result is None else whole[result]
        bias = as_pairs(part.to(part.dtype.to_complex()) if like.is_complex() else part)
    return _value(b.affine(terms, bias), like)


def _value(ref: Ref, like: Tensor) -> Value:
    return Paired(ref) if like.is_complex() else ref


def moves_on_pairs(at: Sequence[int]) -> ComplexRule:
    """The rule of an operation that only moves the entries of the arguments at `at`, real ones among complex ones."""

    def rule(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
        leaves, spec = pytree.tree_flatten(args)
        pairs = {leaf: with_zeros(b, leaf) for leaf in leaves if isinstance(leaf, Ref)}
        pairs |= {Ref(leaf.parts.index, leaf.shape): leaf.parts for leaf in leaves if isinstance(leaf, Paired)}
        plain = [Ref(leaf.parts.index, leaf.shape) if isinstance(leaf, Paired) else leaf for leaf in leaves]
        found: list[Paired] = []
        for parts, fill in movements(op, pytree.tree_unflatten(plain, spec), kwargs, at):
            bias = as_pairs(fill.to(fill.dtype.to_complex())) if bool((fill != 0).any()) else None
            found.append(Paired(b.affine([(_on_pairs(move), pairs[ref]) for move, ref in parts], bias)))
        return tuple(found) if isinstance(like, tuple | list) else found[0]

    return rule


def _on_pairs(move: Mover) -> Mover:
    """The same move of pairs."""
    if isinstance(move, Reshape):
        return Reshape((*move.source, 2), (*move.target, 2))
    both = torch.stack([2 * move.index, 2 * move.index + 1], -1)
    return Index(torch.where(move.index[..., None] < 0, -1, both), (*move.in_shape, 2))


def with_zeros(b: Builder, x: Ref) -> Ref:
    """Pairs of the entries of x and zeros: a real value as a complex one."""
    at = torch.arange(math.prod(x.shape)).reshape(x.shape)
    return b.linear(Index(torch.stack([at, torch.full_like(at, -1)], -1), x.shape), x)
