"""Gram iteration: Schatten norms, their rates, vectors and gradients, against closed forms and the dense SVD."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.linops import Dense
from lipkit.norms import Gram, Readout


def gaussian(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, cols, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def orthogonal(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linalg.qr(gaussian(n, n, seed, dtype)).Q


def value(matrix: Tensor, steps: int, readout: Readout = Readout.FROBENIUS) -> float:
    return float(Gram(steps, readout)(Dense(matrix)).value)


@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("n", [1, 7, 64])
def test_an_orthogonal_matrix_gives_the_root_of_its_size(n: int, steps: int) -> None:
    # Each product counts n roundings relative to ||W||_F^2 = n sigma^2: n^2 2^-53 = 5e-13 at n = 64, a few times over.
    assert value(orthogonal(n), steps) == pytest.approx(n ** (2.0 ** -(steps + 1)), rel=5e-12)


def test_an_orthogonal_matrix_of_width_512() -> None:
    matrix = orthogonal(512)
    for steps, expected in ((4, 1.2152), (6, 1.0499), (10, 1.00305)):
        # Printed to four or five digits.
        assert value(matrix, steps) == pytest.approx(expected, abs=6e-5)


@settings(max_examples=40)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 6), st.booleans(), st.integers(0, 99))
def test_it_is_the_schatten_norm(rows: int, cols: int, steps: int, complex_: bool, seed: int) -> None:
    matrix = gaussian(rows, cols, seed, torch.complex128 if complex_ else torch.float64)
    p = 2 ** (steps + 1)
    sigma = torch.linalg.svdvals(matrix).numpy()
    truth = sigma[0] * ((sigma / sigma[0]) ** p).sum() ** (1 / p)
    # Never below, and above only by the rounding that it counts: 24 * 24 * 2^-53 = 6e-14 a few times over.
    assert truth * (1 - 1e-14) <= value(matrix, steps) <= truth * (1 + 1e-12)


def test_errors_on_a_gaussian_matrix() -> None:
    matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((200, 100)))
    truth = float(torch.linalg.svdvals(matrix)[0])
    errors = {steps: value(matrix, steps) / truth - 1 for steps in range(5, 10)}
    for steps, expected in ((5, 5e-3), (6, 5e-4), (7, 1.5e-5), (8, 3e-8)):
        # Published to one digit and a half.
        assert errors[steps] == pytest.approx(expected, rel=0.35)
    # 2e-13 of the iteration, and as much of proven rounding.
    assert 0 <= errors[9] <= 2e-12


@pytest.mark.parametrize("readout", Readout)
def test_every_step_is_a_bound_and_no_worse_than_the_last(readout: Readout) -> None:
    for seed in range(5):
        matrix = gaussian(17, 30, seed)
        found = [value(matrix, steps, readout) for steps in range(1, 13)]
        assert found[-1] >= float(torch.linalg.svdvals(matrix)[0])
        # From one step to the next, rounding counted on the way may add n 2^-53 where the bound has converged.
        assert all(after <= before * (1 + 1e-13) for before, after in itertools.pairwise(found))


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_any_scale(scale: float) -> None:
    matrix = gaussian(9, 6)
    found = float(Gram(7)(Dense(matrix * scale)).log_value) - math.log(scale)
    # The product with a power of ten rounds each entry; a logarithm of 690 is rounded at 1e-13.
    assert found == pytest.approx(float(Gram(7)(Dense(matrix)).log_value), abs=1e-12)


def test_zero_and_rank_one() -> None:
    assert value(torch.zeros(5, 3), 6) == 0
    # 65 = |(3, 4)| |(5, 12)|, for every number of steps; a logarithm may be off by 2^-50 times its size, up to 10.
    matrix = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 12.0])).double()
    for steps in range(12):
        assert 65 <= value(matrix, steps) <= 65 * (1 + 2e-13)


def two_leading(ratio: float, n: int = 60, seed: int = 0) -> Tensor:
    """U diag(1, ratio, geometric tail) V'."""
    values = torch.cat([torch.tensor([1.0, ratio]), ratio * 0.9 ** torch.arange(1.0, n - 1)]).double()
    return orthogonal(n, seed) @ torch.diag(values) @ orthogonal(n, seed + 1)


@pytest.mark.parametrize("ratio", [0.6, 0.8])
def test_the_row_sum_converges_linearly_and_frobenius_faster(ratio: float) -> None:
    matrix = two_leading(ratio)
    rows = [value(matrix, steps, Readout.ROW_SUM) - 1 for steps in range(6, 12)]
    for before, after in itertools.pairwise(rows):
        # e_N = (row sum of the projector)^(2^-N) - 1: halved up to its square, which is below 2 percent here.
        assert after / before == pytest.approx(0.5, abs=0.02)
    steps = {0.6: 3, 0.8: 4}[ratio]
    errors = [value(matrix, n) - 1 for n in (steps, steps + 1)]
    # log e_(N+1) / log e_N tends to two; it has come to 1.7 where the digits end. Of the row sum it tends to one.
    assert 1.7 <= math.log(errors[1]) / math.log(errors[0]) <= 2.0
    assert math.log(rows[1]) / math.log(rows[0]) <= 1.3


@pytest.mark.parametrize("shape", [(12, 7), (7, 12), (9, 9)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_singular_vectors_and_a_free_lower_side(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = gaussian(*shape, seed=3, dtype=dtype)
    u, s, vh = torch.linalg.svd(matrix)
    bound = Gram(12)(Dense(matrix))
    assert bound.witness is not None
    assert bound.lower is not None
    # The Gram power 2^13 of ratios 0.95 and less leaves nothing of the other vectors.
    assert torch.vdot(u[:, 0], bound.witness.left).abs() == pytest.approx(1, abs=1e-12)
    assert torch.vdot(vh[0].conj(), bound.witness.right).abs() == pytest.approx(1, abs=1e-12)
    assert bound.lower.value <= s[0] <= bound.value
    assert bound.value / bound.lower.value - 1 <= 1e-11


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("shape", [(5, 4), (3, 6)])
def test_the_gradient_is_the_published_one(dtype: torch.dtype, steps: int, shape: tuple[int, int]) -> None:
    matrix = gaussian(*shape, seed=5, dtype=dtype).requires_grad_()
    (found,) = torch.autograd.grad(Gram(steps)(Dense(matrix)).value, matrix)
    w = matrix.detach()
    power = torch.eye(shape[1], dtype=dtype)
    for _ in range(2**steps - 1):
        power = power @ (w.mH @ w)
    # ||W^(N)||_F^2 = sum sigma^(2^(N+1)), of the iterate without rescaling.
    norm = torch.linalg.svdvals(w).pow(2 ** (steps + 1)).sum().sqrt()
    # At most 8 products of well-scaled matrices; the value's own slack is 1e-13.
    torch.testing.assert_close(found, w @ power / norm ** (2 - 2.0**-steps), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("method", [Gram(0), Gram(2), Gram(5), Gram(2, Readout.ROW_SUM)], ids=str)
def test_first_and_second_derivatives_against_differences(method: Gram, dtype: torch.dtype) -> None:
    matrix = gaussian(4, 3, seed=1, dtype=dtype).requires_grad_()

    def norm(w: Tensor) -> Tensor:
        return method(Dense(w)).value

    assert torch.autograd.gradcheck(norm, (matrix,))
    if method.readout is Readout.FROBENIUS:
        assert torch.autograd.gradgradcheck(norm, (matrix,))


def test_the_gradient_tends_to_the_singular_vectors() -> None:
    matrix = gaussian(8, 5).requires_grad_()
    u, _, vh = torch.linalg.svd(matrix.detach())
    (found,) = torch.autograd.grad(Gram(12)(Dense(matrix)).value, matrix)
    # Nothing is left of other directions; the slack of the value, 1e-14, is raised to the power 2^13.
    torch.testing.assert_close(found, torch.outer(u[:, 0], vh[0]), rtol=0, atol=1e-9)


def test_what_the_backward_pass_keeps_does_not_grow_with_the_steps() -> None:
    def saved(steps: int) -> int:
        kept: dict[int, int] = {}
        matrix = gaussian(40, 30).requires_grad_()

        def keep(t: Tensor) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            bound = Gram(steps)(Dense(matrix))
        bound.value.backward()
        return sum(kept.values())

    assert saved(2) == saved(12)
    # The matrix, its batched copy at most, and numbers.
    assert saved(12) <= 2 * 40 * 30 * 8 + 1000


def test_kind_and_refusals() -> None:
    assert Gram()(Dense(torch.eye(2))).kind is Kind.UPPER
    with pytest.raises(ArgumentError, match=r"Gram\.steps"):
        Gram(-1)
    with pytest.raises(ArgumentError, match="row sum"):
        Gram(0, Readout.ROW_SUM)
