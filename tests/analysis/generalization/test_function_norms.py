"""The defect of norms: zero for lengths, the least and the largest there is for others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit import analysis
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked

X = torch.linspace(-1, 1, 201, dtype=torch.float64)


def lipschitz(values: Tensor) -> Tensor:
    """The largest slope between neighbours on a grid, which is the constant on the grid."""
    return (values.diff() / X.diff()).abs().max()


def dirichlet(values: Tensor) -> Tensor:
    """The length of the derivative, which comes from an inner product."""
    return (values.diff().square() / X.diff()).sum().sqrt()


def test_the_lipschitz_norm_has_the_least_defect_there_is():
    f, g = X.clamp(min=0), X.clamp(max=0)
    # All four constants are 1.
    assert analysis.parallelogram_defect(lipschitz, f, g) == pytest.approx(-0.5, abs=1e-12)
    # Sum and difference of x and |x| have constant 2: the largest defect.
    assert analysis.parallelogram_defect(lipschitz, X, X.abs()) == pytest.approx(1, abs=1e-12)


@given(st.integers(0, 10**6))
def test_norms_of_inner_products_have_no_defect_and_none_leaves_the_interval(seed: int):
    f, g = torch.randn(2, 201, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).cumsum(1)
    assert analysis.parallelogram_defect(dirichlet, f, g) == pytest.approx(0, abs=1e-12)
    assert -0.5 - 1e-12 <= analysis.parallelogram_defect(lipschitz, f, g) <= 1 + 1e-12


def test_the_dirichlet_energy_is_a_squared_norm():
    """As printed, without the root, it is above what the defect of a norm can be."""
    assert float(dirichlet(X).square()) == pytest.approx(2, rel=1e-12)
    assert float(dirichlet(2 * X).square()) == pytest.approx(8, rel=1e-12)
    assert analysis.parallelogram_defect(lambda f: dirichlet(f).square(), X, X) == pytest.approx(3, rel=1e-12)
    assert analysis.parallelogram_defect(dirichlet, X, X) == pytest.approx(0, abs=1e-12)


def test_bad_input_is_refused():
    with unchecked(), pytest.raises(ShapeError, match="same points"):
        analysis.parallelogram_defect(lipschitz, X, X[:-1])
    with pytest.raises(ArgumentError, match="both zero"):
        analysis.parallelogram_defect(lipschitz, 0 * X, 0 * X)
    with pytest.raises(ArgumentError, match="finite"):
        analysis.parallelogram_defect(lipschitz, X / 0, X * math.inf)


def test_large_norms_do_not_overflow():
    def largest(values: torch.Tensor) -> float:
        return float(values.abs().max())

    f, g = torch.tensor([1e200, 0.0], dtype=torch.float64), torch.tensor([0.0, 1e200], dtype=torch.float64)
    assert analysis.parallelogram_defect(largest, f, g) == pytest.approx(-0.5)
