"""What an application of an operator costs, counted in layers."""

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.diagonal import Diagonal
from lipkit.linops.index import Index, Permute, Reshape
from lipkit.linops.stated_rounding import Stated
from lipkit.linops.sweep import Sweep


def layers(op: LinearOperator) -> int:
    """How many operators other than scales and changes of place one application passes through."""
    match op:
        case Compose(outer, inner):
            return layers(outer) + layers(inner)
        case Sum(left, right):
            return layers(left) + layers(right)
        case Adjoint(inner) | Scaled(_, inner) | Stated(inner):
            return layers(inner)
        case Sweep(edges):
            return sum(layers(edge) for _, _, edge in edges)
        case BatchNorm() | Diagonal() | Index() | Permute() | Reshape():
            return 0
        case _:
            return 1
