"""Second derivatives of singular values: against autograd through a decomposition, closed forms, and differences."""

import math

import pytest
import torch
from torch import Tensor

from lipkit import analysis, linops, spectral_norm
from lipkit.analysis import singular_value_hessian
from lipkit.analysis.singular_values.curvature_of_largest import curvature_of_largest
from lipkit.analysis.singular_values.decomposition import decompose
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, KindError, NonFiniteError, NotProvenError, UnsupportedError
from lipkit.linops import CircularConv, Conv, Dense, LinearOperator, Padding, materialize


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense_hessian(matrix: Tensor, k: int) -> Tensor:
    def value(entries: Tensor) -> Tensor:
        return torch.linalg.svdvals(entries)[k]

    found = torch.autograd.functional.hessian(value, matrix)
    assert isinstance(found, Tensor)
    return found.reshape(matrix.numel(), matrix.numel())


def conv(mode: Padding, stride: int, seed: int = 0, size: int = 6) -> Conv:
    return Conv(normal(3, 2, 3, 3, seed=seed), (size, size), (stride, stride), ((1, 1), (1, 1)), (1, 1), 1, mode)


def largest(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op))[0])


@pytest.mark.parametrize("shape", [(6, 10), (5, 3), (4, 4), (1, 3)])
def test_every_form_is_that_of_the_dense_hessian(shape: tuple[int, int]):
    matrix, change, other = normal(3, *shape, seed=sum(shape))
    for k in range(min(shape)):
        found, dense = singular_value_hessian(matrix, k), dense_hessian(matrix, k)
        # Autograd through the decomposition is off by a few roundings over the gap, squared for its second pass.
        near = 1e-12 * max(1.0, 1 / decompose(matrix, k).gap) ** 2
        assert torch.allclose(materialize(found), dense, rtol=0, atol=near)
        assert torch.allclose(found.apply(change).flatten(), dense @ change.flatten(), rtol=0, atol=20 * near)
        batch = torch.stack([change, other])
        assert torch.allclose(found.form(batch), ((batch.flatten(1) @ dense) * batch.flatten(1)).sum(1), atol=50 * near)
        assert torch.allclose(found.diagonal().flatten(), dense.diagonal(), rtol=0, atol=near)
        assert found.trace() == pytest.approx(float(dense.trace()), abs=50 * near)
        values = torch.linalg.eigvalsh(dense)
        spectrum = torch.zeros(matrix.numel(), dtype=torch.float64)
        spectrum[: len(found.spectrum())] = found.spectrum()
        assert torch.allclose(spectrum.sort().values, values, rtol=0, atol=50 * near)
        assert torch.allclose(found.apply(matrix), torch.zeros_like(matrix), atol=near)
        assert found.form(change) == pytest.approx(analysis.derivative(matrix, [change, change], k), rel=1e-10)


def test_the_closed_form_of_two_by_two():
    change = torch.tensor([[5.0, 2.0], [3.0, 7.0]])
    found = singular_value_hessian(torch.diag(torch.tensor([3.0, 1.0]))).form(change)
    assert float(found) == pytest.approx(3 / 8 * (4 + 9) + 1 / 4 * 6, rel=1e-14)


def test_the_left_sum_runs_over_all_rows():
    """The root of 4 + x^2 has the second derivative 1/2, all of it from the third row; (3.277) stops at the rank."""
    matrix, change = torch.zeros(2, 3, 2, dtype=torch.float64)
    matrix[0, 0], matrix[1, 1], change[2, 0] = 2.0, 1.0, 1.0
    assert float(singular_value_hessian(matrix).form(change)) == pytest.approx(0.5, rel=1e-14)
    at = decompose(matrix, 0)
    assert not bool((at.left.mT @ change @ at.v).any())  # all terms of the printed sum
    assert not bool((at.right.mT @ change.mT @ at.u).any())


def test_a_rank_deficient_matrix():
    matrix, change = normal(6, 2, seed=1) @ normal(2, 7, seed=2), normal(6, 7, seed=3)
    h = 1e-4
    ends = [float(torch.linalg.svdvals(matrix + x * change)[1]) for x in (h, 0, -h)]
    numeric = (ends[0] - 2 * ends[1] + ends[2]) / h**2
    assert float(singular_value_hessian(matrix, 1).form(change)) == pytest.approx(numeric, abs=1e-5)


def test_the_published_trials_in_small():
    """500 trials are published with an error below 6e-14 a trial; 20 of them, all values, both laws."""
    source = torch.Generator().manual_seed(1)
    for trial in range(20):
        draw = torch.randn if trial % 2 else torch.rand
        matrix = draw(6, 10, dtype=torch.float64, generator=source)
        k = trial % 6
        found, dense = materialize(singular_value_hessian(matrix, k)), dense_hessian(matrix, k)
        gap = decompose(matrix, k).gap
        assert float(torch.linalg.matrix_norm(found - dense, 2)) < 1e-13 * max(1.0, 1 / gap) ** 2


def reference(op: LinearOperator, kernel: Tensor, change: Tensor) -> float:
    """D^2 sigma_1 along a kernel by fourth-order differences of a dense decomposition."""
    h = 2e-3
    at = [largest(op.with_tensors((kernel + x * h * change,))) for x in (-2, -1, 0, 1, 2)]
    return (-at[0] + 16 * at[1] - 30 * at[2] + 16 * at[3] - at[4]) / (12 * h**2)


@pytest.mark.parametrize(
    "op",
    [
        conv(Padding.ZEROS, 1),
        conv(Padding.ZEROS, 2, size=7),
        conv(Padding.CIRCULAR, 1),
        conv(Padding.CIRCULAR, 2),
        CircularConv(normal(2, 2, 5, 5, seed=3)),
        Dense(normal(4, 6, seed=5)),
    ],
    ids=["zeros", "strided", "circular", "circular and strided", "whole torus", "dense"],
)
def test_curvature_in_the_kernel_against_differences_of_a_dense_decomposition(op: LinearOperator):
    (kernel,) = op.tensors()
    found = singular_value_hessian(op)
    changes = normal(3, *kernel.shape, seed=11)
    changes = changes / changes.flatten(1).norm(dim=1).reshape(-1, *(1,) * kernel.ndim)
    forms = found.form(changes)
    for change, form in zip(changes, forms, strict=True):
        # Rounding of the differences: 30 times 1e-15 over 12 h^2, that is 1e-9; the sixth derivative times h^4.
        assert float(form) == pytest.approx(reference(op, kernel, change), abs=1e-6)
    products = found.apply(changes)
    assert torch.allclose((products * changes).flatten(1).sum(1), forms, atol=1e-10)
    assert float((products[0] * changes[1]).sum()) == pytest.approx(float((products[1] * changes[0]).sum()), abs=1e-10)
    assert torch.allclose(found.apply(kernel), torch.zeros_like(kernel), atol=1e-9)  # sigma is homogeneous
    assert float(forms.min()) > -1e-10  # a norm is convex


@pytest.mark.parametrize("seed", [1, 4, 8, 14])
def test_a_double_value_on_the_torus_is_legal(seed: int):
    op = conv(Padding.CIRCULAR, 1, seed=seed, size=5)  # on an odd torus every frequency but zero has its negative
    values = torch.linalg.svdvals(materialize(op))
    assert float(values[0] - values[1]) < 1e-12 * float(values[0])
    with pytest.raises(ArgumentError, match="repeated"):
        singular_value_hessian(materialize(op))
    change = normal(*op.weight.shape, seed=9) / 7
    assert float(singular_value_hessian(op).form(change)) == pytest.approx(reference(op, op.weight, change), abs=1e-6)


def in_kernel_space(op: LinearOperator) -> Tensor:
    """B H B': H is the Hessian of the matrix, by a decomposition, and the rows of B are matrices of unit kernels."""
    (kernel,) = op.tensors()
    units = torch.eye(kernel.numel(), dtype=torch.float64).reshape(-1, *kernel.shape)
    matrices = torch.stack([materialize(op.with_tensors((unit,))) for unit in units])
    return singular_value_hessian(materialize(op)).apply(matrices).flatten(1) @ matrices.flatten(1).mT


@pytest.mark.parametrize(
    "op", [conv(Padding.ZEROS, 1, size=8), conv(Padding.ZEROS, 2, size=7), Dense(normal(4, 6))], ids=str
)
def test_all_curvatures_of_a_kernel_are_those_of_the_dense_hessian(op: LinearOperator):
    found, dense = singular_value_hessian(op), in_kernel_space(op)
    # Conjugate gradients stop at 1e-12 of what they are given, before the inverse of a gap.
    near = 1e-9 * float(torch.linalg.matrix_norm(dense, 2))
    assert torch.allclose(found.diagonal().flatten(), dense.diagonal(), rtol=0, atol=near)
    assert found.diagonal().shape == found.in_shape
    assert found.trace() == pytest.approx(float(dense.trace()), abs=len(dense) * near)
    values = torch.linalg.eigvalsh(dense).flip(0)
    spectrum = found.spectrum()
    assert torch.allclose(spectrum, values[: len(spectrum)], rtol=0, atol=2 * near)
    assert bool((values[len(spectrum) :].abs() < 10 * near).all())  # what is left out is zero
    assert len(spectrum) < len(values)  # along the kernel itself there is no curvature


def test_amplification_is_that_of_the_kernel():
    """It is the norm of B H B': a near pair of the matrix says nothing about the curvature in the kernel."""
    op = conv(Padding.ZEROS, 1, seed=17, size=8)
    norm = spectral_norm(singular_value_hessian(op))
    assert norm.kind is Kind.ESTIMATE
    dense = torch.linalg.eigvalsh(in_kernel_space(op))
    assert float(norm.value) == pytest.approx(float(dense[-1]), rel=1e-6)
    values = torch.linalg.svdvals(materialize(op))
    assert float(1 / (values[0] - values[1])) > 5000  # what the gap would say, for B that are isometries
    assert float(norm.value) < 20
    assert "not bounded" in norm.note


def test_no_norm_of_such_a_hessian_certifies():
    found = singular_value_hessian(normal(3, 3, seed=2))
    shifted = found + linops.Diagonal(torch.ones(3, 3, dtype=torch.float64), (3, 3))
    for op in (found, found.T, 2.0 * found, shifted, found @ found):
        norm = spectral_norm(op)
        assert norm.kind is Kind.ESTIMATE
        assert norm.lower is None
    with pytest.raises(KindError):
        spectral_norm(found).best(spectral_norm(found))
    assert float(spectral_norm(found).value) == pytest.approx(float(found.spectrum()[0]), rel=1e-6)


def test_what_an_operator_cannot_give_is_said():
    wide = singular_value_hessian(Conv(normal(11, 11, 3, 3), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)))
    for wanted in ("trace", "diagonal", "spectrum"):
        with pytest.raises(UnsupportedError, match=r"each of 1089 entries .* at most 1024 .*extreme_eigenvalues"):
            getattr(wide, wanted)()
    with pytest.raises(UnsupportedError, match="k = 1"):
        singular_value_hessian(conv(Padding.ZEROS, 1), k=1)
    with pytest.raises(UnsupportedError, match="has 2 weights"):
        singular_value_hessian(Dense(normal(2, 2)) @ Dense(normal(2, 2)))
    with pytest.raises(NonFiniteError, match="NaN"):
        singular_value_hessian(Dense(torch.full((2, 2), math.nan)))
    with pytest.raises(ArgumentError, match="is zero"):
        singular_value_hessian(Dense(torch.zeros(2, 2)))


def test_a_value_that_splits_is_refused():
    """The identity: every direction that is not symmetric in the right way splits its repeated value."""
    found = singular_value_hessian(Dense(torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))))
    with pytest.raises(NotProvenError, match="splits in this direction"):
        found.form(normal(3, 3, seed=1))


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (9, 9), (1, 4), (4, 1)])
def test_the_largest_value_by_its_gram_matrix_is_that_of_a_decomposition(shape: tuple[int, int]):
    """The form of large matrices, on small ones: every answer is that of singular values with vectors."""
    source = torch.Generator().manual_seed(5)
    matrix = torch.randn(*shape, dtype=torch.float64, generator=source)
    if min(shape) > 3:
        # A value of zero, whose root a Gram matrix knows to half of the digits only.
        matrix[-1] = 0.0
        matrix[:, -1] = 0.0
    x = torch.randn(3, *shape, dtype=torch.float64, generator=source)
    found, expected = curvature_of_largest(matrix), singular_value_hessian(matrix)
    pairs = [
        (found.apply(x), expected.apply(x)),
        (found.form(x), expected.form(x)),
        (found.form(x[0]), expected.form(x[0])),
        (found.diagonal(), expected.diagonal()),
        (found.spectrum(), expected.spectrum()),
        (torch.tensor(found.trace(), dtype=torch.float64), torch.tensor(expected.trace(), dtype=torch.float64)),
    ]
    for one, other in pairs:
        # Both have the digits that a gap of a tenth of the value leaves.
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    assert found.in_shape == shape
    assert found.triplet()[0] == pytest.approx(expected.triplet()[0], rel=1e-14)


@pytest.mark.parametrize("gap", [1e-3, 1e-6])
def test_the_gram_matrix_loses_no_more_digits_than_the_gap(gap: float):
    left, right = (torch.linalg.qr(normal(20, 12, seed=seed)).Q for seed in (1, 2))
    values = torch.linspace(1, 0.1, 12, dtype=torch.float64)
    values[1] = 1 - gap
    matrix, x = left @ torch.diag(values) @ right.mT, normal(20, 20, seed=3)
    a, b = left.mT @ x @ right[:, 0], right.mT @ x.mT @ left[:, 0]
    # The closed form of lemma 3.6.1 from the values that the matrix was made of; both spaces have 8 null directions.
    terms = ((a.square() + b.square()) + 2 * values * a * b) / (1 - values.square())
    outside = (
        (x @ right[:, 0]).square().sum() - a.square().sum() + (x.mT @ left[:, 0]).square().sum() - b.square().sum()
    )
    exact = float(terms[1:].sum() + outside)
    assert float(curvature_of_largest(matrix).form(x)) == pytest.approx(exact, rel=1e-14 / gap)


def test_a_large_matrix_has_the_curvature_of_its_operator():
    matrix, x = torch.randn(2, 300, 260, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # The other side solves the same equations by conjugate gradients, with Lanczos' vectors: about ten digits.
    expected = float(singular_value_hessian(Dense(matrix)).form(x))
    assert float(singular_value_hessian(matrix).form(x)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (torch.eye(260), "repeated"),
        (torch.zeros(260, 260), "is zero"),
        (torch.full((260, 260), 1e200, dtype=torch.float64), "rescale"),
        (torch.full((260, 260), 1e-200, dtype=torch.float64), "rescale"),
        (torch.full((260, 260), float("nan")), "NaN"),
    ],
)
def test_large_matrices_without_derivatives_are_refused(matrix: Tensor, reason: str):
    with pytest.raises((ArgumentError, NonFiniteError), match=reason):
        singular_value_hessian(matrix)
