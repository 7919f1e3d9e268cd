"""The proven SVD: exact on matrices whose norm is known exactly, and true whatever the library returns."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import NotProvenError
from lipkit.linops import Dense
from lipkit.norms import SVD
from support.naming import naming


def gaussian(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, cols, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def hadamard(n: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@pytest.mark.parametrize(
    ("matrix", "norm"),
    [
        (hadamard(64), 8),
        (hadamard(16)[:, :4], 4),
        (torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 12.0, 0.0])), 65),
        (torch.diag(torch.tensor([7.0, -9.0, 2.0])), 9),
        (torch.tensor([[0.0, 3.0 + 4.0j], [0.0, 0.0]]), 5),
        (torch.zeros(3, 2), 0),
    ],
    ids=["hadamard", "isometry", "rank one", "diagonal", "complex", "zero"],
)
def test_never_below_a_norm_that_is_known_exactly(matrix: Tensor, norm: int) -> None:
    bound = SVD()(Dense(matrix))
    assert bound.lower is not None
    # Compared as rational numbers: nothing is forgiven.
    assert Fraction(bound.lower.value.item()) <= norm <= Fraction(bound.value.item())
    assert bound.value <= norm * (1 + 5e-12)  # n^2 2^-53 = 5e-13 at n = 64, a few times over.
    assert bound.kind is Kind.EXACT


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_both_sides_meet(rows: int, cols: int, complex_: bool, seed: int) -> None:
    matrix = gaussian(rows, cols, seed, torch.complex128 if complex_ else torch.float64)
    bound = SVD()(Dense(matrix))
    assert bound.lower is not None
    # 40^2 2^-53 = 2e-13, a few times over.
    assert bound.value / bound.lower.value - 1 <= 5e-12


def rotated(v: Tensor, angle: float) -> Tensor:
    """Orthonormal still, but no longer the singular vectors."""
    skew = gaussian(v.shape[-1], v.shape[-1], 7).to(v.dtype)
    return v @ torch.linalg.matrix_exp(angle * (skew - skew.mH))


WRONG: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotated": rotated,
    "noisy": lambda v, size: v + size * gaussian(v.shape[-2], v.shape[-1], 8).to(v.dtype),
    "shrunk": lambda v, size: v * (1 - size),
    "grown": lambda v, size: v * (1 + size),
    "first lost": lambda v, size: torch.cat([v[..., :1] * (1 - size), v[..., 1:]], -1),
    "equal columns": lambda v, size: (1 - size) * v + size * v[..., :1],
    "not a number": lambda v, size: v * (torch.nan if size > 0.1 else 1),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_decomposition_is_refused_or_repaired(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, size = torch.linalg.svd, 0.0

    def faulty(*args: Tensor, **options: bool) -> object:
        found = library(*args, **options)
        return type(found)((found.U, found.S, WRONG[fault](found.Vh.mH, size).mH))

    monkeypatch.setattr(torch.linalg, "svd", faulty)
    sizes, shapes = (1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.05, 0.2, 0.7, 1.0), ((9, 6), (5, 8), (1, 4), (12, 12))
    for size, shape in itertools.product(sizes, shapes):
        matrix = gaussian(*shape, seed=2)
        truth = float(torch.linalg.svdvals(matrix)[0])
        with naming(size, shape):
            try:
                bound = SVD()(Dense(matrix))
            except NotProvenError:
                if size <= 1e-2:
                    raise AssertionError("a small fault must not cost the bound") from None
                continue
            assert bound.lower is not None
            # The reference is off by n 2^-53 at most.
            assert bound.value >= truth * (1 - 12 * 2.0**-53)
            assert bound.lower.value <= truth * (1 + 12 * 2.0**-53)
            # A fault of relative size e costs at most a few n e: a row sum of n off-diagonal entries.
            assert bound.value <= truth * (1 + 1e-11 + 200 * size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_derivatives_against_differences_and_singular_vectors(dtype: torch.dtype) -> None:
    matrix = gaussian(4, 3, seed=4, dtype=dtype).requires_grad_()

    def norm(w: Tensor) -> Tensor:
        return SVD()(Dense(w)).value

    u, _, vh = torch.linalg.svd(matrix.detach())
    (found,) = torch.autograd.grad(norm(matrix), matrix)
    # Singular vectors of a 4 x 3 matrix with gaps of order one: a few roundings.
    torch.testing.assert_close(found, torch.outer(u[:, 0], vh[0]), rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(norm, (matrix,))
    assert torch.autograd.gradgradcheck(norm, (matrix,))
