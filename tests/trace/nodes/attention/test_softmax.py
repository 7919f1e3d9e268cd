"""Softmax and its relatives: exact constants, attained."""

import math

import pytest
import torch

from lipkit.errors import ArgumentError
from lipkit.regions import Reach
from lipkit.trace.nodes import LogSoftmax, LogSumExp, Node, Softmax


def jacobian(node: Node, z: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda v: node(v[None])[0])(z)


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_softmax_has_constant_one_half_exactly(n: int, p: float):
    node = Softmax((n,))
    # The logarithm is rounded up by 2^-50 (1 + log 2), which is 1.5e-15 of the value.
    assert 0.5 <= node.log_constant(p).exp().item() <= 0.5 + 1e-15
    z = torch.full((n,), -50.0, dtype=torch.float64)
    z[:2] = 0
    assert torch.linalg.matrix_norm(jacobian(node, z), p).item() == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("n", range(2, 11))
def test_log_softmax_has_the_constants_root_n_and_n_minus_one_and_two(n: int):
    node = LogSoftmax((n,))
    z = torch.full((n,), -50.0, dtype=torch.float64)
    z[0] = 0
    found = jacobian(node, z)
    for p, constant in ((2.0, math.sqrt(n)), (1.0, n - 1.0), (math.inf, 2.0)):
        assert node.log_constant(p).exp().item() == pytest.approx(constant, rel=1e-12)
        assert torch.linalg.matrix_norm(found, p).item() == pytest.approx(constant, rel=1e-12)
    # The oblique projection: sqrt(n) |p|_2 at every point.
    z = torch.randn(n, dtype=torch.float64)
    norm = torch.linalg.matrix_norm(jacobian(node, z), 2).item()
    assert norm == pytest.approx(math.sqrt(n) * z.softmax(0).norm().item(), rel=1e-12)


def test_logsumexp_has_constant_one_and_less_on_a_box():
    node = LogSumExp((3, 4))
    assert [node.log_constant(p).item() for p in (1.0, 2.0, math.inf)] == [0, 0, 0]
    zero = torch.zeros(3, 4, dtype=torch.float64)
    local = node.within(Reach(zero, zero, zero, torch.zeros((), dtype=torch.float64)))
    # All probabilities are 1/4: |p|_2 = 1/2 and |p|_inf = 1/4.
    assert local.log_constant(2.0).exp().item() == pytest.approx(0.5, rel=1e-12)
    assert local.log_constant(1.0).exp().item() == pytest.approx(0.25, rel=1e-12)
    assert local.log_constant(math.inf) == 0


def test_a_confident_softmax_has_a_small_constant():
    z = torch.tensor([8.0, 0.0, 0.0], dtype=torch.float64)
    local = Softmax((3,)).within(Reach(z - 0.5, z + 0.5, z, torch.tensor(1.0).double()))
    assert local.log_constant(2.0).exp() <= 0.004


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, LogSumExp])
def test_an_empty_axis_is_refused(kind: type):
    with pytest.raises(ArgumentError, match="an axis with entries"):
        kind((2, 0))


def test_a_row_without_an_entry_to_see_is_refused():
    with pytest.raises(ArgumentError, match="one entry in each row to be seen"):
        Softmax((2, 2), hidden=torch.tensor([[True, True], [False, False]]))
