"""One suite for every rule: the rows it adds compute the operation, and its nodes keep what they promise."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from lipkit.trace.nodes import Pointwise
from lipkit.trace.rules import RULES, Rule
from lipkit.trace.value_range import Reach
from support.rule_trials import Trial, assert_computes, trial

# Rules of these files add no nonlinearity, whatever they are given.
LINEAR = {
    "arithmetic",
    "averages",
    "batch_norm",
    "convolution",
    "gathers",
    "linear_operations",
    "matrix",
    "moving",
    "shape",
}


@dataclass(frozen=True)
class Case:
    """One sample of one rule."""

    rule: Rule
    number: int

    @property
    def file(self) -> str:
        return self.rule.lower.__module__.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.file}-{self.rule.op}-{self.number}"


ALL = [rule for rules in RULES.values() for rule in rules]
CASES = [Case(rule, number) for rule in ALL for number in range(len(rule.samples()))]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def tried(case: Case) -> Trial:
    torch.manual_seed(case.number)
    return trial(case.rule, case.rule.samples()[case.number])


def test_every_rule_has_samples() -> None:
    assert [str(rule.op) for rule in ALL if not rule.samples()] == []


def test_every_file_of_linear_rules_exists() -> None:
    assert LINEAR - {case.file for case in CASES} == set()


def test_no_operation_has_two_rules_of_one_file() -> None:
    files = [(op, rule.lower.__module__) for op, rules in RULES.items() for rule in rules]
    assert len(files) == len(set(files))


@every_case
def test_rows_compute_the_operation(case: Case) -> None:
    assert_computes(tried(case))


@pytest.mark.parametrize("case", [case for case in CASES if case.file in LINEAR], ids=str)
def test_linear_rules_add_linear_rows_with_their_adjoints(case: Case) -> None:
    for network in tried(case).networks:
        assert network is not None
        assert all(isinstance(node, Pointwise) and node.is_identity for node in network.nodes)
        for op in network.blocks.values():
            x = torch.randn(2, *op.in_shape, dtype=torch.float64)
            y = torch.randn(2, *op.out_shape, dtype=torch.float64)
            left, right = (op.apply(x) * y).sum(), (x * op.adjoint(y)).sum()
            # Two sums of the same few hundred products.
            assert (left - right).abs() <= 1e-12 * (1 + (op.apply(x) * y).abs().sum())
            assert op.apply(x[:0]).shape == (0, *op.out_shape)


@pytest.mark.parametrize("case", [case for case in CASES if case.file not in LINEAR], ids=str)
def test_nodes_keep_their_constants(case: Case) -> None:
    found = tried(case)
    for network in found.networks:
        if network is None:
            continue
        values = network.values(found.inputs)
        for k, node in enumerate(network.nodes, start=1):
            z = sum((op.apply(values[j]) for j, op in network.row(k).items()), torch.zeros((), dtype=torch.float64))
            z = z + network.biases[k] if k in network.biases else z
            _check_node(node, torch.as_tensor(z))


def _check_node(node: Any, z: Tensor) -> None:
    """Difference quotients between the inputs at hand, on the whole space and on the box that holds them."""
    low, high = z.amin(0), z.amax(0)
    center = (low + high) / 2
    reach = Reach(low, high, center, torch.linalg.vector_norm(high - center) * (1 + 1e-12))
    y = node(z)
    for one in (node, node.within(reach)):
        if isinstance(one, Pointwise):
            alpha, beta = (slope.expand(z.shape[1:]) for slope in one.slopes())
            for first in range(len(z)):
                # Equal infinities (masks) agree too.
                step = torch.where(z == z[first], 0.0, z - z[first])
                # Where the inputs agree there is no quotient; two values are each within a few units of rounding.
                slack = 1e-13 * (1 + y.abs() + z.abs() + y[first].abs())
                low_side, high_side = torch.minimum(alpha * step, beta * step), torch.maximum(alpha * step, beta * step)
                moved = y - y[first]
                assert ((moved >= low_side - slack) | (step == 0)).all()
                assert ((moved <= high_side + slack) | (step == 0)).all()
            continue
        for p in (1.0, 2.0, math.inf):
            constant = one.log_constant(p).exp()
            for first in range(len(z)):
                far = torch.linalg.vector_norm((y - y[first]).flatten(1), ord=p, dim=1)
                near = torch.linalg.vector_norm((z - z[first]).flatten(1), ord=p, dim=1)
                assert (far <= torch.where(near > 0, constant * near, 0.0) * (1 + 1e-12) + 1e-13).all()
