"""Weights without negative entries: signs, norms, inverses, and the study of their stable rank at the start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError, UnsupportedError
from lipkit.nn import convex
from lipkit.nn.convex._perron import nonnegative_norm
from lipkit.nn.core.geometry import Geometry
from support.unchecked import unchecked

METHODS: tuple[lnn.WeightMethod, ...] = (
    *map(convex.NonNegative, convex.NonNegativeMap),
    convex.Stochastic(),
    convex.Stochastic(None),
    convex.Stochastic(lnn.Cayley()),
    convex.Orthostochastic(),
)
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


@every_method
@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 9), st.floats(-6, 3))
def test_no_entry_is_negative(method: lnn.WeightMethod, rows: int, cols: int, size: float) -> None:
    geometry = Geometry(2, rows, cols)
    for dtype in (torch.float32, torch.float64):
        weight = method(10**size * torch.randn(geometry.shape, dtype=dtype), geometry)
        assert bool((weight >= 0).all())
        assert float(torch.linalg.matrix_norm(weight.double(), 2).max()) <= 1 + 1e-14


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31), st.floats(0, 1))
def test_the_norm_is_bounded_and_sharp(rows: int, cols: int, seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(1, rows, cols, generator=generator, dtype=torch.float64)
    matrix = torch.where(torch.rand(matrix.shape, generator=generator) < share, matrix, 0.0)
    bound, truth = float(nonnegative_norm(matrix)), float(torch.linalg.matrix_norm(matrix[0], 2))
    assert bound >= truth * (1 - 1e-14)
    # Sparse matrices may fall into parts of nearly equal norm, of which the vector finds one; dense ones do not.
    assert bound <= max(1.0, truth) * (1.001 if share == 1 else 1.5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_kernel_has_the_norm_of_its_sum_over_taps(stride: int) -> None:
    """On a large circle, which the vector of ones attains; dense SVD of the operator is the oracle."""
    torch.manual_seed(0)
    layer = lnn.Conv1d(2, 3, 3, stride, padding=1, padding_mode="circular", method=convex.NonNegative()).double()
    units = torch.eye(24, dtype=torch.float64).reshape(24, 2, 12)
    matrix = (layer(units) - layer(0 * units)).flatten(1).mT
    norm = float(torch.linalg.svdvals(matrix.detach())[0])
    assert 0.999 <= norm <= 1 + 1e-14


@every_method
def test_the_inverse_finds_the_weight_again(method: lnn.WeightMethod) -> None:
    if isinstance(method, convex.Orthostochastic):
        pytest.skip("squares forget the signs of a matrix")
    torch.manual_seed(1)
    for shape in ((6, 6), (4, 7), (7, 4)):
        geometry = Geometry(1, *shape)
        weight = method(0.3 * torch.randn(geometry.shape, dtype=torch.float64), geometry)
        again = method(method.inverse(weight, geometry), geometry)
        # An orthogonal matrix is found by a decomposition, and multiplied by n in an exponent.
        torch.testing.assert_close(again, weight, rtol=1e-5, atol=1e-7)


def test_orthostochastic_sums() -> None:
    weight = lnn.Linear(8, 8, method=convex.Orthostochastic()).double().weight.detach()
    for axis in (0, 1):
        torch.testing.assert_close(weight.sum(axis), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-6)


def test_straight_through_passes_the_gradient_of_entries() -> None:
    """Where softplus is flat, its own gradient vanishes; the gradient beyond the division is that of the entries."""
    geometry = Geometry(1, 3, 4)
    raw = (torch.rand(geometry.shape, dtype=torch.float64) * 3 - 6).requires_grad_()
    plain, through = (convex.NonNegative(convex.NonNegativeMap.SOFTPLUS, flag) for flag in (False, True))
    assert torch.equal(through(raw, geometry), plain(raw, geometry))
    slopes = torch.sigmoid(raw.detach())
    direction = torch.randn(geometry.shape, dtype=torch.float64)
    (usual,), (passed,) = (
        torch.autograd.grad((method(raw, geometry) * direction).sum(), raw) for method in (plain, through)
    )
    torch.testing.assert_close(passed * slopes, usual, rtol=1e-9, atol=1e-12)


def stable_rank(matrix: Tensor) -> float:
    values = torch.linalg.svdvals(matrix.detach().double())
    return float((values / values[0]).square().sum())


# Printed figures of 512 x 512 matrices, and how far one draw may be off; the last one has 102 on average here, with a
# deviation of 8, where 87.3 is printed.
STUDY = (
    (convex.NonNegative(convex.NonNegativeMap.SOFTPLUS), 1.0, 0.01),
    (convex.NonNegative(convex.NonNegativeMap.RELU), 2.64, 0.1),
    (convex.NonNegative(convex.NonNegativeMap.ABSOLUTE), 1.33, 0.02),
    (convex.NonNegative(convex.NonNegativeMap.HUBER), 1.8, 0.05),
    (convex.Orthostochastic(), 3.0, 0.1),
    (convex.Stochastic(None), 36.8, 2.0),
    (convex.Stochastic(), 95.0, 25.0),
)


@pytest.mark.parametrize(("method", "printed", "off"), STUDY, ids=repr)
def test_the_stable_rank_at_the_start(method: lnn.WeightMethod, printed: float, off: float) -> None:
    torch.manual_seed(0)
    found = stable_rank(lnn.Linear(512, 512, method=method).weight)
    assert abs(found - printed) <= off


def test_the_softmax_needs_its_factor() -> None:
    """Without the number of columns in the exponent, as printed, the matrix is nearly constant."""
    torch.manual_seed(0)
    n = 512
    free = (2 * torch.rand(n, n, dtype=torch.float64) - 1) * math.sqrt(3 / n)
    assert stable_rank(functional.softmax(free, -1)) < 1.01
    assert abs(stable_rank(functional.softmax(n * free, -1)) - 36.8) < 1.5


def test_stable_rank_of_known_matrices_and_of_a_jacobian() -> None:
    torch.manual_seed(0)
    orthogonal = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    rank_one = torch.outer(torch.randn(6), torch.randn(4)).double()
    torch.testing.assert_close(convex.stable_rank(orthogonal), torch.tensor(6.0, dtype=torch.float64))
    torch.testing.assert_close(convex.stable_rank(rank_one), torch.tensor(1.0, dtype=torch.float64))
    assert float(convex.stable_rank(torch.zeros(3, 3))) == 0
    # Independent entries: n/4 up to the fluctuation of the largest singular value.
    assert abs(float(convex.stable_rank(torch.randn(400, 400))) / 100 - 1) < 0.05
    layer = nn.Linear(4, 3)
    torch.testing.assert_close(convex.stable_rank(layer, torch.randn(4)), convex.stable_rank(layer.weight))


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="give `at`"):
        convex.stable_rank(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="leave `at` out"):
        convex.stable_rank(torch.eye(2), torch.zeros(2))
    with unchecked(), pytest.raises(ShapeError, match="needs a matrix"):
        convex.stable_rank(torch.zeros(3))
    with pytest.raises(NonFiniteError, match="NaN"):
        convex.stable_rank(torch.full((2, 2), torch.nan))
    with pytest.raises(UnsupportedError, match=r"use NonNegative\(\)"):
        lnn.Conv2d(2, 2, 3, method=convex.Stochastic())
    for broken in (lnn.AOL(), lnn.SingularClip()):
        with unchecked(), pytest.raises(ArgumentError, match="orthogonal matrices"):
            convex.Orthostochastic(broken)  # pyright: ignore[reportArgumentType] - what is refused


@pytest.mark.parametrize("map", list(convex.NonNegativeMap), ids=lambda m: m.name)
@pytest.mark.parametrize("size", [1e200, -1e308, 1e-200, 5e-324])
def test_free_numbers_of_every_size_make_weights(map: convex.NonNegativeMap, size: float):
    layer = lnn.Linear(3, 4, method=convex.NonNegative(map), dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original").fill_(size)
    assert bool(layer.weight.isfinite().all())
    assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) <= 1
