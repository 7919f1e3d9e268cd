"""Operations that move entries and never compute: slices, gathers, concatenations, scatters, masks, padding.

The operation itself is run on the positions of the entries, so there is nothing to get wrong in a second description.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lipkit import linops
from lipkit.linops import Index, LinearOperator, Padding, Permute, Reshape, Shape
from lipkit.trace.network import Builder, Padded, Ref, Refusal
from lipkit.trace.rules._registry import Sample, lowers

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@lowers(
    aten.pad.default,
    samples=lambda: [
        Sample((_x(1, 2, 4), [1, 2])),
        Sample((_x(1, 2, 4), [1, -1], "constant", 2.5)),
        Sample((_x(1, 2, 4, 5), [1, 2, 2, 1], "reflect")),
        Sample((_x(1, 2, 4, 5), [1, 2, 0, 1], "replicate")),
        Sample((_x(1, 2, 4, 5), [1, 2, 2, 1], "circular")),
        Sample((_x(1, 2, 4), [0, 0])),
    ],
)
def pad(b: Builder, x: Any, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """The last axes extended, by a constant or by entries of their own."""
    if not any(widths):
        return x
    if min(widths) < 0 or value not in (None, 0):
        return move_entries(b, aten.pad.default, (x, list(widths), mode, value), {}, at=(0,))
    # torch lists the last axis first.
    sides = tuple((widths[k - 1], widths[k]) for k in range(len(widths) - 1, 0, -2))
    kind = Padding.ZEROS if mode == "constant" else Padding(mode)
    return b.remember(b.linear(linops.pad(x.shape, sides, kind), x), Padded(x, sides, kind))


@lowers(aten.constant_pad_nd.default, samples=lambda: [Sample((_x(1, 4), [1, 2], 3.0)), Sample((_x(1, 1, 4), [1, 2]))])
def constant_pad(b: Builder, x: Ref, widths: Sequence[int], value: float = 0) -> Any:
    """The last axes extended by a constant."""
    return pad(b, x, widths, "constant", value)


Result = Ref | tuple[Ref, ...]
Mover = Reshape | Index


def broadcast(shape: Shape, target: Shape) -> LinearOperator:
    """x -> x.expand(target)."""
    if math.prod(shape) == math.prod(target):
        return Reshape(shape, target)
    positions = torch.arange(math.prod(shape)).reshape(shape).expand(target)
    return Index(positions.contiguous(), shape)


def move_entries(
    b: Builder, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], at: Sequence[int]
) -> Result:
    """Rows for an operation whose arguments at the positions `at` are only moved (or replaced by constants).

    In those arguments a reference is a value of the network, and a tensor a constant that is moved along; elsewhere a
    reference is refused.
    """
    refs = tuple(_row(b, parts, fill) for parts, fill in movements(op, args, kwargs, at))
    return refs if _several(op) else refs[0]


def movements(
    op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], at: Sequence[int]
) -> list[tuple[list[tuple[Mover, Ref]], Tensor]]:
    """For each result of an operation as in `move_entries`: where the entries of the values go, and the constants."""
    outside = [value for i, value in enumerate(args) if i not in at]
    if any(isinstance(leaf, Ref) for leaf in pytree.tree_leaves((outside, kwargs))):
        raise Refusal(
            "which entries it moves depends on the input", "use fixed positions or masks, or replace the layer"
        )
    leaves, spec = pytree.tree_flatten([args[i] for i in at])
    # Positions are found on the CPU, wherever the model is.
    fixed = pytree.tree_map_only(Tensor, Tensor.cpu, (args, kwargs))

    def run(values: list[Any], rest: tuple[Any, Any] = fixed) -> list[Tensor]:
        filled = dict(zip(at, pytree.tree_unflatten(values, spec), strict=True))
        try:
            found = op(*(filled.get(i, value) for i, value in enumerate(rest[0])), **rest[1])
        except RuntimeError as error:
            # torch.export lets shapes pass that the operation itself does not take.
            why = str(error).partition("\n")[0]
            raise Refusal(f"torch does not run it: {why}", "give it what it takes, or replace the layer") from error
        return list(found) if isinstance(found, tuple | list) else [found]

    terms: list[list[tuple[Mover, Ref]]] = []
    fills: list[Tensor] = []
    for slot, leaf in enumerate(leaves):
        if isinstance(leaf, Ref):
            images = [run([_probe(v, factor if i == slot else 0) for i, v in enumerate(leaves)]) for factor in (1, 2)]
            # Entries that do not follow the positions are fill values of the operation itself.
            fills = [torch.where(once == twice, once, 0) for once, twice in zip(*images, strict=True)]
            found = [(_mover(once, twice, leaf.shape), leaf) for once, twice in zip(*images, strict=True)]
            terms = [[*known, one] for known, one in zip(terms or [[] for _ in found], found, strict=True)]
    if any(isinstance(leaf, Tensor) for leaf in leaves):
        fills = run(_at_zero(leaves), (args, kwargs))
    return list(zip(terms, fills, strict=True))


def _row(b: Builder, parts: Sequence[tuple[Mover, Ref]], fill: Tensor) -> Ref:
    bias = fill if bool((fill != 0).any()) else None
    op, x = parts[0]
    if len(parts) == 1 and bias is None and isinstance(op, Reshape) and op.source == op.target:
        return x
    return b.affine(parts, bias)


def _several(op: Callable[..., Any]) -> bool:
    assert isinstance(op, OpOverload)
    returns = op._schema.returns
    return len(returns) > 1 or "[]" in str(returns[0].type) or "List" in str(returns[0].type)


def _probe(value: object, factor: int) -> object:
    """A stand-in whose entries say where they come from: factor (1 + flat position); zeros for a constant."""
    if isinstance(value, Ref):
        size = math.prod(value.shape)
        # Positions up to 2^53 are exact in float64, and padding has no integer kernels.
        return (factor * torch.arange(1, size + 1, dtype=torch.float64)).reshape(value.shape)
    return torch.zeros_like(value, dtype=torch.float64, device="cpu") if isinstance(value, Tensor) else value


def _mover(once: Tensor, twice: Tensor, source: Shape) -> Mover:
    """The gather behind two probes: their difference is 1 + position where an entry came through, else zero."""
    position = torch.where(once == twice, 0, twice - once).long() - 1
    shape = tuple(position.shape)
    if math.prod(shape) == math.prod(source) and bool((position.flatten() == torch.arange(position.numel())).all()):
        return Reshape(source, shape)
    return Index(position.contiguous(), source)


def _at_zero(leaves: list[Any]) -> list[Any]:
    """The arguments with zero for what depends on the input: what is left are constants that are moved along."""
    like = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return [like.new_zeros(leaf.shape) if isinstance(leaf, Ref) else leaf for leaf in leaves]


def moves(*ops: OpOverload, at: tuple[int, ...] = (0,), samples: Callable[[], list[Sample]]) -> None:
    """Register operations that only move the entries of the arguments at the positions `at`."""
    for op in ops:

        def rule(b: Builder, *args: Any, op: OpOverload = op, **kwargs: Any) -> Result:
            return move_entries(b, op, args, kwargs, at)

        _ = lowers(op, samples=samples)(rule)


@lowers(
    aten.permute.default,
    samples=lambda: [Sample((_x(1, 2, 3, 4), [0, 3, 1, 2])), Sample((_x(1, 2, 3), [2, -2, 0]))],
)
def permute(b: Builder, x: Ref, dims: Sequence[int]) -> Ref:
    """The axes in another order."""
    return b.linear(Permute(x.shape, tuple(d % len(x.shape) for d in dims)), x)


@lowers(
    aten.transpose.int,
    aten.swapaxes.default,
    aten.swapdims.default,
    samples=lambda: [Sample((_x(1, 2, 3), 1, 2)), Sample((_x(1, 2, 3), 0, -1))],
)
def transpose(b: Builder, x: Ref, first: int, second: int) -> Ref:
    """Two axes exchanged."""
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return b.linear(Permute(x.shape, tuple(order)), x)
