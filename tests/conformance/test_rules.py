"""One suite for every rule: the rows it adds compute the operation, and its nodes keep what they promise."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lipkit.regions import Reach
from lipkit.trace.nodes import Pointwise
from lipkit.trace.rules import RULES, Rule
from support.naming import naming
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


RULES_IN_ORDER = [rule for rules in RULES.values() for rule in rules]


def file_of(rule: Rule) -> str:
    return rule.lower.__module__.rpartition(".")[2]


def named(rule: Rule) -> str:
    return f"{file_of(rule)}-{rule.op}"


def trials(rule: Rule) -> Iterator[tuple[int, Trial]]:
    """Every sample of a rule with its number."""
    for number, sample in enumerate(rule.samples()):
        torch.manual_seed(number)
        yield number, trial(rule, sample)


def test_every_rule_has_samples() -> None:
    assert [str(rule.op) for rule in RULES_IN_ORDER if not rule.samples()] == []


def test_every_file_of_linear_rules_exists() -> None:
    assert LINEAR - {file_of(rule) for rule in RULES_IN_ORDER} == set()


def test_no_operation_has_two_rules_of_one_file() -> None:
    files = [(op, rule.lower.__module__) for op, rules in RULES.items() for rule in rules]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("rule", RULES_IN_ORDER, ids=named)
def test_rows_compute_the_operation_and_nodes_keep_their_constants(rule: Rule) -> None:
    for number, found in trials(rule):
        with naming(f"sample {number}"):
            assert_computes(found)
            if file_of(rule) in LINEAR:
                _check_linear(found)
            else:
                _check_nodes(found)


def _check_linear(found: Trial) -> None:
    """Rows without a nonlinearity, whose operators have their adjoints."""
    for network in found.networks:
        assert network is not None
        assert all(isinstance(node, Pointwise) and node.is_identity for node in network.nodes)
        for op in network.blocks.values():
            x = torch.randn(2, *op.in_shape, dtype=torch.float64)
            y = torch.randn(2, *op.out_shape, dtype=torch.float64)
            left, right = (op.apply(x) * y).sum(), (x * op.adjoint(y)).sum()
            # Two sums of the same few hundred products.
            assert (left - right).abs() <= 1e-12 * (1 + (op.apply(x) * y).abs().sum())
            assert op.apply(x[:0]).shape == (0, *op.out_shape)


def _check_nodes(found: Trial) -> None:
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
