"""Norms from l_p to l_q, against brute force over vertices and sampled ratios."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lipkit.bound import Kind, Metric
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Compose, Conv, Dense, LinearOperator, materialize
from lipkit.norms import Mixed, dual_exponent
from support.operators.geometries import operators

INF = math.inf


def gaussian(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, cols, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def largest(matrix: Tensor, points: Tensor, p: float, q: float) -> float:
    """max ||A x||_q / ||x||_p over the columns of `points`."""
    return float((torch.linalg.vector_norm(matrix @ points, q, 0) / torch.linalg.vector_norm(points, p, 0)).max())


def signs(n: int) -> Tensor:
    """The vertices of the cube."""
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n)), dtype=torch.float64).mT


@pytest.mark.parametrize("q", [1, 1.5, 2, 3, 7.5, INF])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4), (4, 1)])
def test_from_l1_the_vertices_are_the_unit_vectors(q: float, shape: tuple[int, int]) -> None:
    matrix = gaussian(*shape)
    bound = Mixed(1, q)(Dense(matrix))
    assert (bound.kind, bound.metric) == (Kind.EXACT, Metric(1, q))
    truth = largest(matrix, torch.eye(shape[1], dtype=torch.float64), 1, q)
    # A handful of powers and sums; the slack is 100 roundings.
    assert truth <= bound.value <= truth * (1 + 1e-13)


@pytest.mark.parametrize("shape", [(3, 9), (9, 3), (6, 6)])
def test_from_linf_to_linf_the_vertices_are_the_signs(shape: tuple[int, int]) -> None:
    matrix = gaussian(*shape)
    bound = Mixed(INF, INF)(Dense(matrix))
    assert bound.kind is Kind.EXACT
    truth = largest(matrix, signs(shape[1]), INF, INF)
    assert truth * (1 - 1e-15) <= bound.value <= truth * (1 + 1e-13)


@pytest.mark.parametrize("p", [1.01, 1.5, 2, 3, 20])
def test_to_linf_each_row_is_a_functional(p: float) -> None:
    """Directions all round the circle, where the largest ratio is found to four digits from below."""
    matrix = gaussian(3, 2)
    angle = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    sampled = largest(matrix, torch.stack([angle.cos(), angle.sin()]), p, INF)
    bound = Mixed(p, INF)(Dense(matrix))
    assert bound.kind is Kind.EXACT
    # Smooth in the angle for p > 1, steep near the axes for p near 1.
    assert sampled <= bound.value <= sampled * (1 + (1e-7 if p >= 1.5 else 1e-3))


@pytest.mark.parametrize("p", [1.0, 1.2, 2.0, 3.0, 10.0, INF])
def test_riesz_thorin_is_above_every_ratio(p: float) -> None:
    for seed in range(4):
        matrix = gaussian(4, 4, seed)
        samples = torch.cat([gaussian(4, 4000, seed + 9), torch.eye(4, dtype=torch.float64), signs(4)], 1)
        bound = Mixed(p, p)(Dense(matrix))
        assert bound.kind is (Kind.EXACT if p in (1, INF) else Kind.UPPER)
        assert bound.value >= largest(matrix, samples, p, p) * (1 - 1e-15)
    # Sharp for matrices with one row or diagonal ones.
    assert Mixed(p, p)(Dense(torch.diag(torch.tensor([3.0, -2.0])))).value == pytest.approx(3, rel=1e-14)


def test_riesz_thorin_at_two_is_the_root_of_the_product() -> None:
    matrix = gaussian(5, 7)
    expected = math.sqrt(float(matrix.abs().sum(0).max()) * float(matrix.abs().sum(1).max()))
    assert Mixed(2, 2)(Dense(matrix)).value == pytest.approx(expected, rel=1e-14)
    assert Mixed(2, 2)(Dense(matrix)).value >= torch.linalg.svdvals(matrix)[0]


@pytest.mark.parametrize(("p", "q"), [(1, 1), (1, 2), (1, INF), (2, INF), (INF, INF), (3, 3)])
@settings(max_examples=15)
@given(op=operators())
def test_any_operator_is_its_matrix(p: float, q: float, op: LinearOperator) -> None:
    found, dense = Mixed(p, q)(op), Mixed(p, q)(Dense(materialize(op)))
    # Slack relative to the parts of the operator where they cancel; nothing cancels here but by chance.
    torch.testing.assert_close(found.value, dense.value, rtol=1e-9, atol=1e-11)


def test_cancelling_products_stay_bounded() -> None:
    """a c - b d with a c = b d up to the last digit: what is left is rounding, and the true number is not zero."""
    generator = torch.Generator().manual_seed(0)
    exceeded = 0
    for _ in range(60):
        a, b, c = torch.rand(3, dtype=torch.float64, generator=generator).tolist()
        d = a * c / b
        row, column = torch.tensor([[a, -b]], dtype=torch.float64), torch.tensor([[c], [d]], dtype=torch.float64)
        truth = abs(Fraction(a) * Fraction(c) - Fraction(b) * Fraction(d))
        exceeded += abs(Fraction((row @ column).item())) < truth
        for method in (Mixed(1, 1), Mixed(INF, INF), Mixed(1, 2), Mixed(2, INF), Mixed(2, 2)):
            assert Fraction(method(Compose(Dense(row), Dense(column))).value.item()) >= truth
    # Otherwise the test would prove nothing.
    assert exceeded >= 10


@pytest.mark.parametrize("q", [50.0, 900.0, 2000.0, 1e6])
@pytest.mark.parametrize("scale", [1e-200, 0.6, 1e200])
def test_large_exponents_neither_overflow_nor_vanish(q: float, scale: float) -> None:
    matrix = scale * torch.tensor([[1.0, 0.5], [-1.0, 0.25]], dtype=torch.float64)
    # Two equal entries: 2^(1/q). The logarithm of 1e200 is rounded at 1e-13, a few times.
    assert Mixed(1, q)(Dense(matrix)).value == pytest.approx(scale * 2 ** (1 / q), rel=1e-12)
    dual = Mixed(q / (q - 1), INF)(Dense(matrix.mT))
    assert dual.value == pytest.approx(scale * 2 ** (1 / q), rel=1e-9 if q < 1e5 else 1e-6)


def test_complex_entries_count_by_modulus() -> None:
    matrix = torch.tensor([[3 + 4j, 1.0], [0.0, 2j]], dtype=torch.complex128)
    assert Mixed(1, 1)(Dense(matrix)).value == pytest.approx(5, rel=1e-14)
    assert Mixed(INF, INF)(Dense(matrix)).value == pytest.approx(6, rel=1e-14)
    assert Mixed(2, INF)(Dense(matrix)).value == pytest.approx(math.sqrt(26), rel=1e-14)


def test_convolutions_too_large_to_write_out() -> None:
    op = Conv(gaussian(1, 8 * 3 * 9).reshape(8, 3, 3, 3), (224, 224), (1, 1), ((1, 1), (1, 1)), (1, 1))
    taps = op.weight.abs().sum((2, 3))
    # Away from the border every tap is read: the sums of the kernel.
    assert Mixed(INF, INF)(op).value == pytest.approx(float(taps.sum(1).max()), rel=1e-8)
    assert Mixed(1, 1)(op).value == pytest.approx(float(taps.sum(0).max()), rel=1e-8)


@pytest.mark.parametrize("metric", [(1, 1), (1, 2), (2, INF), (INF, INF), (3, 3), (1, 3)])
def test_gradient_against_differences(metric: tuple[float, float]) -> None:
    matrix = gaussian(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: Mixed(*metric)(Dense(w)).value, (matrix,))


def test_dual_exponents() -> None:
    assert [dual_exponent(p) for p in (1, 1.5, 2, 3, INF)] == [INF, 3, 2, 1.5, 1]
    assert dual_exponent(dual_exponent(1.3)) == pytest.approx(1.3, rel=1e-15)
    for p in (0.5, 0.0, -1.0, math.nan):
        with pytest.raises(ArgumentError, match=r"\[1, inf\]"):
            dual_exponent(p)


@pytest.mark.parametrize(("p", "q"), [(2, 1), (INF, 1), (INF, 2), (3, 2), (2, 3)])
def test_pairs_without_a_closed_form_are_refused(p: float, q: float) -> None:
    with pytest.raises(UnsupportedError, match="p_in = 1, p_out = inf or p_in = p_out"):
        Mixed(p, q)


def test_exponents_below_one_are_refused() -> None:
    for pair in ((0.5, 2.0), (1.0, 0.9), (math.nan, math.nan)):
        with pytest.raises(ArgumentError, match="exponents"):
            Mixed(*pair)
