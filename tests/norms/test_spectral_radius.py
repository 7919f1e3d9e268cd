"""The spectral radius from above, against matrices whose eigenvalues are known."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.norms import SpectralRadius


def companion(roots: list[complex]) -> Tensor:
    """The matrix whose characteristic polynomial has these roots."""
    coefficients = np.poly(roots)[1:]
    matrix = np.diag(np.ones(len(roots) - 1, dtype=coefficients.dtype), -1)
    matrix[:, -1] = -coefficients[::-1]
    return torch.from_numpy(matrix)


@pytest.mark.parametrize(
    ("roots", "radius"),
    [
        ([2.0, 1.0, -0.5], 2.0),
        ([-3.0, 2.0, 1.0, 0.1], 3.0),
        ([0.6 + 0.8j, 0.6 - 0.8j, 0.3], 1.0),
        ([5j, -2.0, 1 + 1j], 5.0),
    ],
    ids=["real", "negative", "pair", "complex"],
)
def test_companion_matrices(roots: list[complex], radius: float) -> None:
    matrix = companion(roots)
    found = [float(SpectralRadius(steps)(matrix).value) for steps in range(15)]
    # The coefficients are rounded, which moves well separated roots by as little.
    assert all(value >= radius * (1 - 1e-14) for value in found)
    # (n^(1/2) kappa)^(2^-14): below 2e-3 for condition numbers up to 1e13.
    assert found[-1] <= radius * (1 + 2e-3)
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(found))


def test_below_the_norm_of_a_matrix_that_is_not_normal() -> None:
    matrix = torch.tensor([[0.5, 3.0], [0.0, 0.25]], dtype=torch.float64)
    bound = SpectralRadius(12)(matrix)
    assert bound.kind is Kind.UPPER
    # 12^(2^-12) = 1 + 6e-4 in exact arithmetic; the rounding of the squares, which may feed the corner, adds as much.
    assert 0.5 <= bound.value <= 0.5 * (1 + 2e-3)
    # A larger corner costs more digits, and never the bound.
    for corner in (1e2, 1e4, 1e8):
        matrix[0, 1] = corner
        assert 0.5 <= SpectralRadius(12)(matrix).value <= corner


def test_a_triple_eigenvalue_stays_bounded() -> None:
    matrix = companion([1.0, 1.0, 1.0])
    # Rounding in the squares may move a triple eigenvalue by its third root, so digits are lost but not the bound.
    assert all(1 <= SpectralRadius(steps)(matrix).value <= 5 for steps in range(15))
    assert SpectralRadius(14)(matrix).value <= 1.1


def test_nilpotent_and_zero() -> None:
    shift = torch.diag(torch.ones(7, dtype=torch.float64), 1)
    # The eighth power is zero exactly, but a bound that counts rounding sees that of three squares: (7e-15)^(1/8).
    values = [float(SpectralRadius(steps)(shift).value) for steps in (0, 3, 6, 10)]
    assert values[0] == pytest.approx(math.sqrt(7), rel=1e-14)
    assert all(0 <= value <= 0.03 for value in values[1:])
    assert SpectralRadius()(torch.zeros(4, 4)).value == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32, torch.bfloat16])
def test_above_the_eigenvalues_of_random_matrices(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for seed in range(8):
        matrix = torch.randn(12, 12, dtype=wide, generator=torch.Generator().manual_seed(seed)).to(dtype)
        radius = float(torch.linalg.eigvals(matrix.to(wide)).abs().max())
        # The eigenvalue solver is backward stable: n 2^-53 times a condition number of at most 100 or so.
        assert radius * (1 - 1e-12) <= SpectralRadius(14)(matrix).value <= radius * (1 + 1e-3)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_any_scale(scale: float) -> None:
    matrix = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = float(SpectralRadius()(scale * matrix).log_value) - math.log(scale)
    # A logarithm of 690 is rounded at 1e-13; the products with a power of ten round every entry.
    assert shifted == pytest.approx(float(SpectralRadius()(matrix).log_value), abs=1e-12)


def test_refusals() -> None:
    with pytest.raises(ShapeError, match="square"):
        SpectralRadius()(torch.zeros(2, 3))
    with pytest.raises(ArgumentError, match=r"SpectralRadius\.steps"):
        SpectralRadius(-1)
    with pytest.raises(NonFiniteError):
        SpectralRadius()(torch.full((2, 2), math.nan))


@pytest.mark.parametrize("roots", [[3.0, -1.0, 0.5], [-2.0, 1.5, 1.0, 0.1], [1.1, 1.0, -0.3], [0.7]])
def test_the_dominant_eigenvector_of_companion_matrices(roots: list[float]) -> None:
    pair = SpectralRadius(steps=12).dominant(companion(list(roots)).mT.real)
    first = max(roots, key=abs)
    # The transposed matrix shifts (1, r, r^2, ...).
    expected = torch.tensor([first**k for k in range(len(roots))], dtype=torch.float64)
    expected = expected / expected.norm() * torch.sign(pair.vector[0])
    # A companion matrix with entries of size 4 and separated roots: eigenvalues have condition numbers below 1e3.
    torch.testing.assert_close(pair.value, torch.tensor(first, dtype=torch.float64), rtol=1e-10, atol=0)
    torch.testing.assert_close(pair.vector, expected, rtol=0, atol=1e-10)
    assert float(pair.residual) < 1e-10


def test_the_residual_tells_where_there_is_no_dominant_eigenvector() -> None:
    quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert float(SpectralRadius().dominant(quarter_turn).residual) > 0.5
    complex_pair = SpectralRadius().dominant(torch.diag(torch.tensor([2j, 1.0])))
    assert abs(complex(complex_pair.value) - 2j) < 1e-12
    nilpotent = SpectralRadius().dominant(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert float(nilpotent.value) == float(nilpotent.residual) == 0
    zero = SpectralRadius().dominant(torch.zeros(3, 3))
    assert float(zero.residual) == 0
    with pytest.raises(ShapeError, match="square"):
        SpectralRadius().dominant(torch.zeros(2, 3))
