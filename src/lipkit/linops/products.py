"""Products of operators with what cancels in them left out."""

from lipkit.linops._base import Compose, LinearOperator
from lipkit.linops.index import Permute, Reshape


def factors(op: LinearOperator) -> list[LinearOperator]:
    """The factors of a product, outermost first; an operator that is none is its own."""
    return [*factors(op.outer), *factors(op.inner)] if isinstance(op, Compose) else [op]


def product(outer: LinearOperator, inner: LinearOperator) -> LinearOperator:
    """outer @ inner, the same map, with adjacent reshapes and permutations merged and identities dropped.

    Nothing is multiplied out, so nothing is rounded, and convolutions, matrices and diagonals stay what they are.
    """
    merged: list[LinearOperator] = []
    for factor in (*factors(outer), *factors(inner)):
        merged.append(factor)
        while len(merged) > 1:
            fewer = _merged(merged[-2], merged[-1])
            if fewer is None:
                break
            merged[-2:] = [fewer]
    kept = [factor for factor in merged if not _is_identity(factor)] or merged[:1]
    result = kept[0]
    for factor in kept[1:]:
        result = Compose(result, factor)
    return result


def _is_identity(op: LinearOperator) -> bool:
    return isinstance(op, Reshape) and op.source == op.target


def _merged(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """One operator for the product of two, or None if there is none."""
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
