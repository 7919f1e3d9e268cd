"""Products of operators with what cancels in them left out."""

from lipkit.linops._base import Compose, LinearOperator
from lipkit.linops.index import Permute, Reshape


def product(outer: LinearOperator, inner: LinearOperator) -> LinearOperator:
    """outer @ inner, the same map, with adjacent reshapes and permutations merged and identities dropped.

    Nothing is multiplied out, so nothing is rounded, and convolutions, matrices and diagonals stay what they are.
    """
    factors: list[LinearOperator] = []
    for factor in (*_factors(outer), *_factors(inner)):
        factors.append(factor)
        while len(factors) > 1:
            merged = _merged(factors[-2], factors[-1])
            if merged is None:
                break
            factors[-2:] = merged
    kept = [factor for factor in factors if not _is_identity(factor)] or factors[:1]
    result = kept[0]
    for factor in kept[1:]:
        result = Compose(result, factor)
    return result


def _factors(op: LinearOperator) -> list[LinearOperator]:
    return [*_factors(op.outer), *_factors(op.inner)] if isinstance(op, Compose) else [op]


def _is_identity(op: LinearOperator) -> bool:
    return isinstance(op, Reshape) and op.source == op.target


def _merged(outer: LinearOperator, inner: LinearOperator) -> list[LinearOperator] | None:
    """Fewer factors for the product of two, or None if there are none."""
    match outer, inner:
        case Reshape(_, target), Reshape(source, _):
            return [Reshape(source, target)]
        case Permute(_, after), Permute(shape, before):
            return [Permute(shape, tuple(before[axis] for axis in after))]
        case Permute(shape, order), _ if order == tuple(range(len(shape))):
            return [inner]
        case _, Permute(shape, order) if order == tuple(range(len(shape))):
            return [outer]
        case _:
            return None
