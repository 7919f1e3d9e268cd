"""The table of layers: shares that add up, elasticities that are derivatives, savings that are ratios of norms."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lipkit.bounds import DAG
from lipkit.bounds.fold.layer_table import NONLINEARITY, WHOLE_ROW, LayerRow, layer_table
from lipkit.bounds.fold.operator_words import describe
from lipkit.linops import Conv, Dense, Diagonal, LinearOperator, Permute, Reshape, of
from lipkit.trace import Network, chain
from lipkit.trace.capture import capture
from lipkit.trace.network import Origin
from lipkit.trace.nodes import RELU, Identity, Pointwise


def matrix(rows: int, cols: int, seed: int) -> Dense:
    generator = torch.Generator().manual_seed(seed)
    return Dense(torch.randn(rows, cols, generator=generator, dtype=torch.float64))


def norm(op: LinearOperator) -> float:
    basis = torch.eye(op.in_size, dtype=torch.float64).reshape(-1, *op.in_shape)
    return torch.linalg.matrix_norm(op.to(torch.float64).apply(basis).reshape(op.in_size, -1), 2).item()


def residual() -> Network:
    """z_1 = A x, z_2 = B relu(z_1), output C relu(z_2) + D x: two paths of different length."""
    ops = {(1, 0): matrix(5, 4, 0), (2, 1): matrix(6, 5, 1), (3, 2): matrix(3, 6, 2), (3, 0): matrix(3, 4, 3)}
    nodes = (Pointwise(RELU, (5,)), Pointwise(RELU, (6,)))
    return Network((4,), nodes, ops, target=(3,))


def test_the_shares_of_a_chain_are_the_logarithms():
    ops = [matrix(5, 4, 0), matrix(6, 5, 1), matrix(2, 6, 2)]
    rows = layer_table(chain(ops, RELU))
    logs = [math.log(norm(op)) for op in ops]
    assert [row.elasticity for row in rows] == [1, 1, 1]
    # Norms of small matrices are exact to 1e-6 at worst.
    assert [row.share for row in rows] == pytest.approx([log / sum(logs) for log in logs], rel=1e-5)
    assert [row.norm for row in rows] == pytest.approx([norm(op) for op in ops], rel=1e-6)
    assert [(row.row, row.column) for row in rows] == [(1, 0), (2, 1), (3, 2)]


def test_an_elasticity_is_the_derivative_of_the_bound():
    network = residual()
    before = DAG()(network).log_value.item()
    rows = {(row.row, row.column): row for row in layer_table(network)}
    step = 1e-4
    for at, op in network.blocks.items():
        assert isinstance(op, Dense)
        longer = replace(network, blocks={**network.blocks, at: Dense(op.weight * math.exp(step))})
        slope = (DAG()(longer).log_value.item() - before) / step
        # A one-sided difference is off by step times the second derivative, which is at most 1/4 here.
        assert rows[at].elasticity == pytest.approx(slope, abs=step)
    assert rows[3, 0].elasticity + rows[3, 2].elasticity == pytest.approx(1)


def test_a_steep_nonlinearity_has_a_line_of_its_own():
    model = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 2))
    rows = layer_table(capture(model, torch.zeros(1, 3)))
    steep = [row for row in rows if row.column == NONLINEARITY]
    assert [row.norm for row in steep] == pytest.approx([1.128904], abs=1e-5)  # the largest slope of GELU
    assert math.fsum(row.share or 0 for row in rows) == pytest.approx(1)


def test_where_the_logarithm_cancels_there_are_no_shares():
    big = Dense(torch.eye(3, dtype=torch.float64) * 100)
    small = Dense(torch.eye(3, dtype=torch.float64) * 0.0101)
    rows = layer_table(chain([big, small], RELU))
    assert [row.share for row in rows] == [None, None]
    assert [row.elasticity for row in rows] == [1, 1]


def test_a_zero_block_contributes_nothing():
    network = residual()
    nothing = replace(network, blocks={**network.blocks, (3, 2): Dense(torch.zeros(3, 6, dtype=torch.float64))})
    rows = {(row.row, row.column): row for row in layer_table(nothing)}
    assert rows[3, 0].share == pytest.approx(1)
    assert [rows[at].elasticity for at in ((1, 0), (2, 1), (3, 2))] == [0, 0, 0]
    assert all(math.isfinite(row.share or 0) for row in rows.values())


def test_a_constant_has_an_empty_table_or_zeros():
    assert layer_table(Network((2,), (), {}, {1: torch.ones(3)}, target=(3,))) == []
    with torch.no_grad():
        rows = layer_table(chain([matrix(2, 2, 0)], RELU))
    assert [row.elasticity for row in rows] == [1]


def test_a_row_measured_as_one_has_a_line():
    # Two blocks onto orthogonal lines: their sum of norms is 2, as one operator they have norm 1, times sqrt(1 + 1).
    left = Dense(torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64) / math.sqrt(2))
    right = Dense(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64) / math.sqrt(2))
    eye = Dense(torch.eye(2, dtype=torch.float64))
    nodes = (Pointwise(RELU, (2,)), Pointwise(RELU, (2,)))
    network = Network((2,), nodes, {(1, 0): eye, (2, 0): eye, (3, 1): left, (3, 2): right}, target=(2,))
    assert DAG()(network).value.item() == pytest.approx(math.sqrt(2))
    elasticities = {(row.row, row.column): row.elasticity for row in layer_table(network)}
    expected = {(1, 0): 0.5, (2, 0): 0.5, (3, 1): 0.0, (3, 2): 0.0, (3, WHOLE_ROW): 1.0}
    assert elasticities == pytest.approx(expected)


def joined(*ops: LinearOperator) -> Network:
    """The operators one after the other, each an operation of its own."""
    nodes = tuple(Pointwise(Identity(), op.out_shape) for op in ops[:-1])
    blocks = {(k, k - 1): op for k, op in enumerate(ops, start=1)}
    origins = tuple(Origin("linear", f"layer{k}") for k in range(len(ops)))
    return Network(ops[0].in_shape, nodes, blocks, {}, origins, ops[-1].out_shape)


def test_what_fusing_saved_is_the_ratio_of_the_norms():
    a, b, c = matrix(5, 4, 0), matrix(6, 5, 1), matrix(3, 6, 2)
    (row,) = layer_table(joined(a, b, c))
    assert row.operator == "Linear 4->5, Linear 5->6, Linear 6->3"
    assert row.origin == "layer0, layer1"
    assert row.saved == pytest.approx(norm(a) * norm(b) * norm(c) / norm(c @ b @ a), rel=1e-5)
    assert [one.saved for one in layer_table(joined(a, b, c), savings=False)] == [None]
    assert [one.saved for one in layer_table(joined(a))] == [None]


class Residual(nn.Module):
    """x + B A x has no nonlinearity, so it is one block."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6, dtype=torch.float64), nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.b(self.a(x)))


def test_what_fusing_saved_counts_all_paths():
    model = Residual()
    rows: list[LayerRow] = layer_table(capture(model, torch.zeros(1, 4, dtype=torch.float64)))
    a, b = model.a.weight.detach(), model.b.weight.detach()
    norms = [torch.linalg.matrix_norm(m, 2).item() for m in (a, b, torch.eye(4, dtype=torch.float64) + b @ a)]
    assert rows[0].saved == pytest.approx((1 + norms[0] * norms[1]) / norms[2], rel=1e-5)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (of(nn.Conv2d(64, 128, 3, stride=2, padding=1), (64, 32, 32)), "Conv 64->128 3x3 /2 on 32x32"),
        (of(nn.Conv1d(4, 4, 5, groups=2), (4, 9)), "Conv 4->4 5 on 9 in 2 groups"),
        (of(nn.ConvTranspose2d(4, 2, (2, 3), stride=(2, 3)), (4, 5, 6)), "ConvTranspose 4->2 2x3 /2x3 on 5x6"),
        (of(nn.AvgPool2d(2), (3, 8, 8)), "AvgPool 2x2 /2 on 8x8"),
        (of(nn.BatchNorm2d(3).eval(), (3, 8, 8)), "BatchNorm 3"),
        (matrix(3, 4, 0), "Linear 4->3"),
        (matrix(3, 4, 0).T, "adjoint of Linear 4->3"),
        (matrix(3, 4, 0) * 2.5, "2.5 x Linear 4->3"),
        (matrix(3, 4, 0) + matrix(3, 4, 1), "sum of 2 of Linear 4->3"),
        (matrix(4, 4, 0) + Diagonal(torch.ones(4), (4,)), "Linear 4->4 + Scaling of 4"),
        (matrix(4, 4, 0) + Diagonal(torch.ones(4), (4,)) + matrix(4, 4, 1), "sum of 3 maps 4->4"),
        (Reshape((2, 2), (4,)), "Reshape 2x2->4"),
        (Reshape((2, 2), (2, 2)), "identity on 2x2"),
        (Permute((2, 3), (1, 0)) @ Reshape((6,), (2, 3)), "reordering of 6"),
        (Diagonal(torch.ones(3), (3,)), "Scaling of 3"),
        (matrix(3, 4, 0) @ Reshape((2, 2), (4,)), "Linear 4->3"),
    ],
)
def test_operators_in_words(op: LinearOperator, words: str):
    assert describe(op) == words


def test_long_products_are_shortened():
    long = matrix(2, 2, 0)
    for seed in range(1, 9):
        long = matrix(2, 2, seed) @ long
    assert describe(long) == "Linear 2->2, Linear 2->2, Linear 2->2, 5 more, Linear 2->2"
    assert isinstance(of(nn.Conv1d(1, 1, 1), (1, 1)), Conv)


def test_operations_have_the_names_that_a_user_writes():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.flatten(x - 0.5, 1)) * 2

    (row,) = layer_table(capture(Functional(), torch.zeros(1, 2, 2)))
    assert row.origin == "sub, flatten, head, mul"
