"""Linear operators, and where they come from, in a few words for tables."""

from functools import singledispatch

from lipkit.linops import (
    Adjoint,
    AvgPool,
    BatchNorm,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    Compose,
    Conv,
    ConvTranspose,
    Dense,
    Diagonal,
    LinearOperator,
    Permute,
    Reshape,
    Scaled,
    Shape,
    StatedRounding,
    Sum,
    Sweep,
    factors,
)
from lipkit.trace.network import Origin

# More factors than these are counted, not listed.
_LISTED = 4


def name_origin(origin: Origin) -> str:
    """The module, or without one the operation as a user writes it: "flatten", not "flatten.using_ints"."""
    return origin.module or origin.op.partition(".")[0]


@singledispatch
def describe(op: LinearOperator) -> str:
    """What an operator is, such as "Conv 64->128 3x3 /2 on 32x32"; a product lists its factors as they are applied.

    Reshapes and reorderings are left out of products, because they change no norm.
    """
    return f"{type(op).__name__} {_by(op.in_shape)}->{_by(op.out_shape)}"


@describe.register
def _(op: Dense) -> str:
    return f"Linear {op.weight.shape[1]}->{op.weight.shape[0]}"


@describe.register
def _(op: Conv) -> str:
    grouped = f" in {op.groups} groups" if op.groups > 1 else ""
    size = f"{op.in_shape[0]}->{op.out_shape[0]} {_by(op.kernel)}{_step(op.stride)}"
    return f"Conv {size} on {_by(op.spatial)}{grouped}"


@describe.register
def _(op: ConvTranspose) -> str:
    size = f"{op.in_shape[0]}->{op.out_shape[0]} {_by(tuple(op.weight.shape[2:]))}{_step(op.stride)}"
    return f"ConvTranspose {size} on {_by(op.spatial)}"


@describe.register
def _(op: BatchNorm) -> str:
    return f"BatchNorm {op.shape[0]}"


@describe.register
def _(op: AvgPool) -> str:
    return f"AvgPool {_by(op.kernel)}{_step(op.stride)} on {_by(op.spatial)}"


@describe.register
def _(op: Diagonal) -> str:
    return f"Scaling of {_by(op.shape)}"


@describe.register
def _(op: Reshape) -> str:
    same = op.source == op.target
    return f"identity on {_by(op.source)}" if same else f"Reshape {_by(op.source)}->{_by(op.target)}"


@describe.register
def _(op: Scaled) -> str:
    return f"{float(op.factor.detach().abs()):.4g} x {describe(op.inner)}"


@describe.register
def _(op: Adjoint) -> str:
    return f"adjoint of {describe(op.inner)}"


@describe.register
def _(op: StatedRounding) -> str:
    return describe(op.inner)


@describe.register
def _(op: Sum) -> str:
    parts = _terms(op)
    said = list(dict.fromkeys(map(describe, parts)))
    if len(said) == 1:
        return f"sum of {len(parts)} of {said[0]}"
    return " + ".join(said) if len(parts) == 2 else f"sum of {len(parts)} maps {_by(op.in_shape)}->{_by(op.out_shape)}"


def _terms(op: LinearOperator) -> list[LinearOperator]:
    return [*_terms(op.left), *_terms(op.right)] if isinstance(op, Sum) else [op]


@describe.register
def _(op: Compose) -> str:
    parts = factors(op)[::-1]
    said = [describe(part) for part in parts if not isinstance(part, Reshape | Permute)]
    if not said:
        return f"reordering of {_by(op.in_shape)}"
    rest = len(said) - _LISTED
    return ", ".join(said if rest <= 1 else [*said[: _LISTED - 1], f"{rest} more", said[-1]])


@describe.register(BlockRow)
@describe.register(BlockColumn)
@describe.register(BlockDiagonal)
def _(op: BlockRow | BlockColumn | BlockDiagonal) -> str:
    return f"{type(op).__name__} of {len(op.parts)}"


@describe.register
def _(op: Sweep) -> str:
    return f"{len(op.edges)} operators, {_by(op.in_shape)}->{_by(op.out_shape)}"


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _step(stride: Shape) -> str:
    if all(step == 1 for step in stride):
        return ""
    return f" /{stride[0]}" if len(set(stride)) == 1 else f" /{_by(stride)}"
