"""How many layers an application passes: scales and changes of place are free."""

import torch

from lipkit.linops import Dense, Diagonal, LinearOperator, Reshape, sweep
from lipkit.norms.auto import count_layers


def test_layers_are_counted_along_products_and_sums() -> None:
    a, b = (Dense(torch.randn(3, 3)) for _ in range(2))
    scale: LinearOperator = Diagonal(torch.rand(3), (3,))
    assert [count_layers(op) for op in (a, scale, Reshape((3,), (1, 3)))] == [1, 0, 0]
    assert count_layers(a @ scale @ b) == 2
    assert count_layers((a @ b).T) == 2
    assert count_layers(a @ b + 2 * a) == 3
    graph = sweep([(1, 0, a), (2, 1, b @ scale), (2, 0, scale)], 0, 2)
    assert graph is not None
    assert count_layers(graph) == 2
