"""Linear operators, and where they come from, in a few words for tables."""

from lipkit.linops import (
    Adjoint,
    AvgPool,
    BatchNorm,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    CircularConv,
    Compose,
    Conv,
    ConvExponential,
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


def describe(op: LinearOperator) -> str:
    """An operator in words, such as "Conv 64->128 3x3 /2 on 32x32"; a product lists its factors as they are applied.

    Reshapes and reorderings are left out of products, because they change no norm.
    """
    ends = f"{_by(op.in_shape)}->{_by(op.out_shape)}"
    match op:
        case Dense():
            return f"Linear {op.weight.shape[1]}->{op.weight.shape[0]}"
        case Conv():
            return f"Conv {_window(op, op.kernel)} on {_by(op.spatial)}{_grouped(op)}"
        case CircularConv():
            ends = f"{op.in_shape[0]}->{op.out_shape[0]}"
            return f"Conv {ends} {_by(op.spatial)} on a circle of {_by(op.spatial)}{_grouped(op)}"
        case ConvExponential(conv, degree):
            return f"Exponential of {describe(conv)}, {degree} terms"
        case ConvTranspose():
            return f"ConvTranspose {_window(op, tuple(op.weight.shape[2:]))} on {_by(op.spatial)}"
        case BatchNorm():
            return f"BatchNorm {op.shape[0]}"
        case AvgPool():
            return f"AvgPool {_by(op.kernel)}{_step(op.stride)} on {_by(op.spatial)}"
        case Diagonal():
            return f"Scaling of {_by(op.shape)}"
        case Reshape(source, target):
            return f"identity on {_by(source)}" if source == target else f"Reshape {ends}"
        case Scaled(factor, inner):
            return f"{float(factor.detach().abs()):.4g} x {describe(inner)}"
        case Adjoint(inner):
            return f"adjoint of {describe(inner)}"
        case StatedRounding(inner):
            return describe(inner)
        case Sum():
            return _describe_sum(_terms(op), ends)
        case Compose():
            said = [describe(part) for part in reversed(factors(op)) if not isinstance(part, Reshape | Permute)]
            rest = len(said) - _LISTED
            listed = said if rest <= 1 else [*said[: _LISTED - 1], f"{rest} more", said[-1]]
            return ", ".join(listed) or f"reordering of {_by(op.in_shape)}"
        case BlockRow(parts) | BlockColumn(parts) | BlockDiagonal(parts):
            return f"{type(op).__name__} of {len(parts)}"
        case Sweep(edges):
            return f"{len(edges)} operators, {ends}"
        case _:
            return f"{type(op).__name__} {ends}"


def _describe_sum(parts: list[LinearOperator], ends: str) -> str:
    said = list(dict.fromkeys(map(describe, parts)))
    if len(said) == 1:
        return f"sum of {len(parts)} of {said[0]}"
    return " + ".join(said) if len(parts) == 2 else f"sum of {len(parts)} maps {ends}"


def _terms(op: LinearOperator) -> list[LinearOperator]:
    return [*_terms(op.left), *_terms(op.right)] if isinstance(op, Sum) else [op]


def _grouped(op: CircularConv | Conv) -> str:
    return f" in {op.groups} groups" if op.groups > 1 else ""


def _window(op: Conv | ConvTranspose, kernel: Shape) -> str:
    return f"{op.in_shape[0]}->{op.out_shape[0]} {_by(kernel)}{_step(op.stride)}"


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _step(stride: Shape) -> str:
    if all(step == 1 for step in stride):
        return ""
    return f" /{stride[0]}" if len(set(stride)) == 1 else f" /{_by(stride)}"
