"""The table of linear operations without a structure of their own: correct by autograd, slow, and one line each."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lipkit.linops import LinearFunction, LinearOperator
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers

aten = torch.ops.aten


@final
@dataclass(frozen=True, eq=False)
class Slot:
    """An operation as a function of one of its leaves, for a batch of values of that leaf.

    The leaves at `zeros` are other arguments it is linear in, taken to be zero; those at `held` are the constant
    tensors, which come in as parameters.
    """

    op: OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    at: int
    zeros: tuple[int, ...]
    held: tuple[int, ...]

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        # Real weights act on the dtype of x; positions and masks stay what they are.
        values = [p.to(x.dtype) if p.is_floating_point() else p for p in parameters]

        def one(sample: Tensor) -> Tensor:
            leaves = list(self.leaves)
            for i, value in zip(self.held, values, strict=True):
                leaves[i] = value
            for i in self.zeros:
                leaves[i] = sample.new_zeros(self.leaves[i].shape)
            leaves[self.at] = sample
            args, kwargs = pytree.tree_unflatten(leaves, self.spec)
            return self.op(*args, **kwargs)

        return torch.func.vmap(one)(x) if x.shape[0] else x.new_zeros((0, *one(x.new_zeros(x.shape[1:])).shape))


def by_autograd(
    b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], linear: Collection[int]
) -> Ref:
    """Rows for an operation that is jointly linear in the leaves of (args, kwargs) at the positions `linear`."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    refs = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Ref)]
    if any(i not in linear for i in refs):
        raise Refusal("it is linear in other arguments than those that depend on the input", "replace the layer")
    constants = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i in linear]
    held = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in linear)
    parameters = tuple(leaves[i] for i in held)
    like = next((p for p in parameters if p.is_floating_point()), torch.zeros((), dtype=torch.float64))
    terms: list[tuple[LinearOperator, Ref]] = []
    for i in refs:
        slot = Slot(op, tuple(leaves), spec, i, tuple(j for j in (*refs, *constants) if j != i), held)
        with torch.no_grad():
            image = slot(torch.zeros((1, *leaves[i].shape), dtype=like.dtype, device=like.device), *parameters)
        terms.append((LinearFunction(slot, leaves[i].shape, tuple(image.shape[1:]), parameters), leaves[i]))
    bias = None
    if constants:
        zero = leaves[constants[0]]
        filled = [zero.new_zeros(leaf.shape) if isinstance(leaf, Ref) else leaf for leaf in leaves]
        given, named = pytree.tree_unflatten(filled, spec)
        bias = op(*given, **named)
    return b.affine(terms, bias)


def leaves_of(args: tuple[Any, ...], at: Collection[int]) -> set[int]:
    """The positions, among all leaves, of those of the arguments at the positions `at`."""
    counts = [len(pytree.tree_leaves(arg)) for arg in args]
    return {sum(counts[:i]) + k for i in at for k in range(counts[i])}


def linear(*ops: OpOverload, at: tuple[int, ...] = (0,), samples: Callable[[], list[Sample]]) -> None:
    """Register operations that are jointly linear in the arguments at `at` when the rest is constant."""
    for op in ops:

        def rule(b: Builder, *args: Any, op: OpOverload = op, **kwargs: Any) -> Ref:
            return by_autograd(b, op, args, kwargs, leaves_of(args, at))

        _ = lowers(op, samples=samples)(rule)


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


_AT = torch.tensor([0, 2, 0])

linear(aten.cumsum.default, samples=lambda: [Sample((_x(1, 3, 4), 1)), Sample((_x(1, 3, 4), -1))])
linear(aten.diff.default, samples=lambda: [Sample((_x(1, 5), 2, 1))])
linear(aten.trace.default, samples=lambda: [Sample((_x(3, 4),))])
linear(aten.col2im.default, samples=lambda: [Sample((_x(1, 8, 6), [3, 4], [2, 2], [1, 1], [0, 0], [1, 1]))])
linear(aten.upsample_linear1d.vec, samples=lambda: [Sample((_x(1, 2, 3), None, False, [2.0]))])
linear(
    aten.upsample_bilinear2d.vec,
    aten.upsample_bicubic2d.vec,
    aten._upsample_bilinear2d_aa.vec,
    aten._upsample_bicubic2d_aa.vec,
    samples=lambda: [Sample((_x(1, 2, 3, 4), None, False, [2.0, 1.5])), Sample((_x(1, 1, 4, 4), [3, 5], True, None))],
)
linear(aten.upsample_trilinear3d.vec, samples=lambda: [Sample((_x(1, 1, 2, 3, 2), [3, 3, 3], False, None))])
linear(
    aten.grid_sampler.default,
    samples=lambda: [Sample((_x(1, 2, 4, 4), torch.rand(1, 3, 3, 2, dtype=torch.float64), 0, 0, False))],
)
linear(
    aten.index_add.default,
    at=(0, 3),
    samples=lambda: [Sample((_x(1, 4), 1, _AT, _x(1, 3)), wrt=(0, 3)), Sample((_x(1, 4), 1, _AT, _x(1, 3)), wrt=(3,))],
)
linear(
    aten.scatter_add.default,
    at=(0, 3),
    samples=lambda: [Sample((_x(1, 4), 1, _AT[None], _x(1, 3)), wrt=(0, 3))],
)
linear(
    aten.index_put.default,
    at=(0, 2),
    samples=lambda: [Sample((_x(1, 4), [None, _AT], _x(1, 3), True), wrt=(0, 2))],
)


@lowers(
    aten.scatter_reduce.two,
    samples=lambda: [
        Sample((_x(1, 4), 1, _AT[None], _x(1, 3), "sum"), wrt=(0, 3)),
        Sample((_x(1, 4), 1, _AT[None], _x(1, 3), "mean"), {"include_self": False}, wrt=(3,)),
    ],
)
def scatter_reduce(b: Builder, *args: Any, **kwargs: Any) -> Ref:
    """Sums and means of the entries that constant positions send to one place."""
    if args[4] not in ("sum", "mean"):
        raise Refusal(f"takes the {args[4]} of what is sent to one place", "take sums or means, or use amax on an axis")
    return by_autograd(b, aten.scatter_reduce.two, args, kwargs, leaves_of(args, (0, 3)))


linear(aten.lerp.Scalar, at=(0, 1), samples=lambda: [Sample((_x(1, 4), _x(1, 4), 0.25), wrt=(0, 1))])
linear(aten.lerp.Tensor, at=(0, 1), samples=lambda: [Sample((_x(1, 4), _x(1, 4), _x(1, 4)), wrt=(0, 1))])


@lowers(aten.einsum.default, samples=lambda: [Sample(("bij->bi", [_x(1, 3, 2)]), wrt=(1,))])
def einsum(b: Builder, equation: str, operands: Sequence[Any], **kwargs: Any) -> Ref:
    """Linear in one of its operands."""
    at = [i for i, value in enumerate(operands) if isinstance(value, Ref)]
    if len(at) > 1:
        raise Refusal("several factors depend on the input", "write it as products of two factors")
    return by_autograd(b, aten.einsum.default, (equation, list(operands)), kwargs, {1 + at[0]})


@lowers(
    aten.tensordot.default,
    samples=lambda: [
        Sample((_x(1, 3, 2), _x(2, 3, 4), [1, 2], [1, 0])),
        Sample((_x(4, 2), _x(1, 2, 3), [1], [1]), wrt=(1,)),
    ],
)
def tensordot(b: Builder, x: Any, y: Any, x_axes: Sequence[int], y_axes: Sequence[int]) -> Ref:
    """Linear in one of its operands."""
    if isinstance(x, Ref) and isinstance(y, Ref):
        raise Refusal("both factors depend on the input", "write it with matmul or *")
    at = 0 if isinstance(x, Ref) else 1
    return by_autograd(b, aten.tensordot.default, (x, y, list(x_axes), list(y_axes)), {}, {at})
