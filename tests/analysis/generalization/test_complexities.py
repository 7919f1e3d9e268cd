"""Complexities against linear programs and closed forms."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit import analysis
from lipkit.errors import ArgumentError, NonFiniteError


def by_program(points: np.ndarray, signs: np.ndarray) -> float:
    """The largest (1/m) sum s_i f_i with |f_i - f_j| <= |x_i - x_j| and f_0 = 0."""
    count = len(points)
    rows, ends = [], []
    for i, j in itertools.permutations(range(count), 2):
        row = np.zeros(count)
        row[i], row[j] = 1, -1
        rows.append(row)
        ends.append(np.linalg.norm(points[i] - points[j]))
    limits = [(0, 0)] + [(None, None)] * (count - 1)
    return -scipy.optimize.linprog(-signs / count, np.array(rows), np.array(ends), bounds=limits).fun


@given(st.integers(2, 5), st.integers(1, 3), st.integers(0, 10**6))
def test_all_signs_are_those_of_linear_programs(count: int, dimension: int, seed: int):
    points = np.random.default_rng(seed).normal(size=(count, dimension))
    every = [by_program(points, np.array(s)) for s in itertools.product((-1.0, 1.0), repeat=count)]
    found = analysis.rademacher_lipschitz(torch.from_numpy(points), 2.5)
    # The solver's tolerance is 1e-7 for a constraint.
    assert math.isclose(found.value, 2.5 * float(np.mean(every)), rel_tol=1e-6)
    assert found.standard_error == 0


def test_the_printed_bound_is_false_for_lipschitz_functions():
    x = torch.randn(64, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    found = analysis.rademacher_lipschitz(x, 1.0, draws=6)
    printed = math.sqrt(2) / math.sqrt(64)
    assert f"{printed:.3f}" == "0.177"
    assert found.value - 5 * found.standard_error > 3 * printed
    assert 0.72 < found.value < 0.84
    # It holds for linear functions, even without the root of 2: their complexity is K/m E|sum s_i x_i|.
    signs = torch.randint(2, (200, 64), generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    linear = float((signs @ x).norm(dim=1).mean()) / 64
    assert linear <= analysis.rademacher_linear(x, 1.0) == pytest.approx(0.125)


def test_a_bound_of_the_gap():
    found = analysis.generalization_bound(0.1, 2.0, 200, 0.05)
    assert math.isclose(found, 0.4 + 3 * math.sqrt(math.log(40) / 400))


def test_bad_input_is_refused():
    with pytest.raises(ArgumentError, match="set draws"):
        analysis.rademacher_lipschitz(torch.zeros(13, 1), 1.0)
    with pytest.raises(ArgumentError, match="two draws"):
        analysis.rademacher_lipschitz(torch.zeros(3, 1), 1.0, draws=1)
    with pytest.raises(ArgumentError, match="constant"):
        analysis.rademacher_lipschitz(torch.zeros(3, 1), -1.0)
    with pytest.raises(NonFiniteError):
        analysis.rademacher_linear(torch.full((3, 1), math.nan), 1.0)
    with pytest.raises(ArgumentError, match="failure"):
        analysis.generalization_bound(0.1, 1.0, 10, 1.5)


@pytest.mark.parametrize("size", [1e-170, 1e170])
def test_points_of_any_size_have_their_complexity(size: float):
    points = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for complexity in (lambda x, k: analysis.rademacher_lipschitz(x, k).value, analysis.rademacher_linear):
        assert complexity(points * size, 1 / size) == pytest.approx(complexity(points, 1.0), rel=1e-12)


def test_an_infinite_constant_says_nothing():
    with pytest.raises(ArgumentError, match="finite"):
        analysis.generalization_bound(0.0, math.inf, 10, 0.1)
