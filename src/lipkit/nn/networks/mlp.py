"""A multilayer perceptron with a Lipschitz constant that one chooses."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn.activations.sorting import MaxMin
from lipkit.nn.layers.linear import Linear
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck


def mlp(sizes: Sequence[int], *, K: float = 1.0, method: WeightMethod = Bjorck()) -> Sequential:  # noqa: B008 - immutable
    """Dense layers with MaxMin between them: x -> K (W_n MaxMin(... MaxMin(W_1 x + b_1) ...) + b_n), all ||W_i|| <= 1.

    By the default method every W_i is orthogonal, so gradients keep their norm wherever layers do not narrow.

    Guarantee: constant K in l2, by construction. Reference: Anil, Lucas and Grosse 2019.

    Args:
        sizes: Features of the input, of each hidden layer (even: MaxMin sorts pairs), and of the output.
        K: The constant of the network.
        method: Keeps the norms of the weights at most one.
    """
    if not isinstance(sizes, Sequence) or len(sizes) < 2 or min(sizes) < 1 or any(size % 2 for size in sizes[1:-1]):
        raise ArgumentError(
            f"mlp takes the sizes of input, hidden layers and output, hidden ones even, got {sizes}; for "
            "example mlp((784, 256, 256, 10))."
        )
    parts: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        parts += [Linear(wide, narrow, method=method), MaxMin()]
    return Sequential(*parts[:-1], K=K)
