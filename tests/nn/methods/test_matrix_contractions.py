"""Methods that only bound: Frobenius, clipping, singular values cut off, rows and columns, balls."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bound import L2, Metric
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Padding, materialize
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Promise, WeightMethod
from lipkit.nn.methods.clipping import Clip
from lipkit.nn.methods.frobenius import Frobenius
from lipkit.nn.methods.lp_ball import LpBall
from lipkit.nn.methods.rko import overlap
from lipkit.nn.methods.singular_clip import SingularClip
from lipkit.nn.methods.unit_rows import UnitLines, UnitRows
from support.layers.matrix_methods import (
    CONTRACTIONS,
    EUCLIDEAN,
    LARGEST,
    OTHER_NORMS,
    SHAPES,
    SUM,
    degenerate,
    gaussian,
    ordinary,
)

DTYPES = (torch.float32, torch.float64)


def made(method: WeightMethod, raw: Tensor) -> Tensor:
    return method(raw, Geometry(len(raw), raw.shape[1], raw.shape[2]))


def induced(matrix: Tensor, metric: Metric) -> float:
    """The norm of a float64 matrix by its definition."""
    wide = matrix.detach().to(torch.float64)
    if metric == L2:
        return float(torch.linalg.svdvals(wide).max())
    if metric == SUM:
        return float(wide.abs().sum(-2).max())
    return float(torch.linalg.vector_norm(wide, 2 if metric == EUCLIDEAN else 1, dim=-1).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", [*CONTRACTIONS, *OTHER_NORMS], ids=str)
def test_the_norm_is_at_most_one_and_gradients_are_finite(method: WeightMethod, dtype: torch.dtype) -> None:
    most = method.radius if isinstance(method, LpBall) else 1.0
    for shape in SHAPES:
        metric = method.metric(Geometry(1, *shape))
        for name, raw in (ordinary(*shape) | degenerate(*shape)).items():
            free = raw.to(dtype).requires_grad_()
            weight = made(method, free)
            assert weight.dtype == dtype
            # The oracle's own rounding: a few n 2^-53.
            assert induced(weight[0], metric) <= most * (1 + 8 * max(shape) * 2.0**-53), (name, shape)
            (gradient,) = torch.autograd.grad((weight * gaussian(*shape, 3).to(dtype)).sum(), free)
            assert bool(torch.isfinite(gradient).all()), (name, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_singular_values_are_clipped_and_the_rest_is_kept(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        raw = gaussian(*shape)
        left, values, right = torch.linalg.svd(raw, full_matrices=False)
        expected = (left * values.clamp(max=1.0)[:, None, :]) @ right
        found = made(SingularClip(), raw.to(dtype)).to(torch.float64)
        # float32 storing: 2^-24 (14^(1/2) + 4), and the rounding of the free matrix.
        torch.testing.assert_close(found, expected, atol=2e-6 if dtype == torch.float32 else 1e-11, rtol=0)


def test_singular_clip_does_not_trust_its_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.linalg.svd
    raw = 3 * gaussian(6, 6)

    def wrong(matrix: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        left, values, basis = right(matrix, full_matrices=full_matrices)
        return left, values * 0.4, basis.roll(1, -2) * 1.001

    monkeypatch.setattr(torch.linalg, "svd", wrong)
    weight = made(SingularClip(), raw)
    assert float(torch.linalg.svdvals(weight).max()) <= 1


@pytest.mark.parametrize(
    "method", [SingularClip(), LpBall(1.0), LpBall(math.inf), UnitLines(), UnitLines(SUM)], ids=str
)
def test_what_is_inside_already_is_left_alone(method: WeightMethod) -> None:
    inside = 0.05 * gaussian(6, 5)
    assert method.is_feasible(inside, Geometry(1, 6, 5))
    torch.testing.assert_close(made(method, inside), inside, atol=0, rtol=1e-11)
    assert not method.is_feasible(10 * gaussian(6, 5), Geometry(1, 6, 5))


def test_the_two_ball_is_entered_within_rank_to_the_128th() -> None:
    for shape in SHAPES:
        values = torch.linalg.svdvals(made(LpBall(2.0), 5 * gaussian(*shape)))
        assert float(values.max()) >= min(shape) ** (-1 / 128) * (1 - 1e-9)
    # An isometry is where the bound is worst; a matrix of rank one has no excess.
    assert float(torch.linalg.svdvals(made(LpBall(2.0), gaussian(7, 1) @ gaussian(1, 7))).max()) >= 1 - 1e-9


def test_rows_have_the_norms_they_should() -> None:
    raw = 4 * gaussian(6, 5)
    rows = torch.linalg.vector_norm(made(UnitRows(), raw), dim=-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-11, rtol=0)
    assert UnitRows().is_feasible(made(UnitRows(), raw), Geometry(1, 6, 5))
    assert not UnitRows().is_feasible(raw, Geometry(1, 6, 5))
    # A short row stays, a long one is cut.
    mixed = raw * torch.tensor([1, 1e-3, 1, 1, 1e-3, 1])[:, None]
    sums = made(UnitLines(LARGEST), mixed).abs().sum(-1)[0]
    torch.testing.assert_close(sums, mixed.abs().sum(-1)[0].clamp(max=1), atol=1e-11, rtol=0)
    sums = made(UnitLines(SUM), raw).abs().sum(-2)
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-11, rtol=0)


def test_unit_rows_do_not_bound_the_euclidean_norm() -> None:
    weight = made(UnitRows(), torch.ones(1, 9, 4, dtype=torch.float64))
    assert float(torch.linalg.svdvals(weight).max()) == pytest.approx(3)


def test_frobenius_is_sharp_for_rank_one() -> None:
    assert float(torch.linalg.svdvals(made(Frobenius(), gaussian(1, 7))).max()) == pytest.approx(1, abs=1e-11)
    weight = made(Frobenius(), gaussian(5, 7))
    assert Frobenius().is_feasible(weight, Geometry(1, 5, 7))
    assert not Frobenius().is_feasible(weight / 2, Geometry(1, 5, 7))


def test_clip_reaches_norm_one_and_refuses_what_proves_nothing() -> None:
    geometry = Geometry(1, 6, 4)
    ones = made(Clip(), torch.ones(1, 6, 4, dtype=torch.float64))
    assert float(torch.linalg.svdvals(ones).max()) == pytest.approx(1, abs=1e-6)
    assert Clip(0.1)(ones, geometry).max() == 0.1
    with pytest.raises(UnsupportedError, match=r"take at most 0\.204"):
        Clip(0.3).promise(geometry)
    with pytest.raises(ArgumentError, match="positive number, got -1"):
        Clip(-1.0)
    start = Clip().start(geometry)
    assert Clip().is_feasible(start, geometry)
    assert not Clip().is_feasible(2 * start + 1, geometry)


@settings(max_examples=40)
@given(st.data(), st.integers(0, 3), st.booleans())
def test_kernels_keep_the_norm_of_every_convolution(data: st.DataObject, seed: int, constant: bool) -> None:
    shape = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)))
    taps, stride, dilation = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)))
    kind, side = data.draw(st.sampled_from(["plain", "circular", "transposed"])), data.draw(st.integers(0, 2))
    span = dilation * (taps - 1)
    # Divisible by the stride for the circle, and as long as the kernel at least; longer where padding crops.
    length = stride * (
        -(-(span + 1) // stride) + data.draw(st.integers(0, 2)) + (2 * side if kind == "transposed" else 0)
    )
    sides = ((span // 2, span - span // 2),) if kind == "circular" else ((side, side),)
    mode = Padding.CIRCULAR if kind == "circular" else Padding.ZEROS
    output = (0,) if kind == "transposed" else ()
    geometry = Geometry(*shape, (taps,), (stride,), sides, (dilation,), mode, kind == "transposed", output)
    raw = torch.randn(geometry.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    raw = torch.ones_like(raw) if constant else raw
    channels = geometry.groups * (geometry.rows if geometry.transposed else geometry.cols)
    for method in (Frobenius(), Clip(), UnitRows(), UnitLines(LARGEST), UnitLines(SUM), LpBall(1.0), LpBall(math.inf)):
        if method.metric(geometry) == EUCLIDEAN and geometry.mode is Padding.CIRCULAR and any(geometry.padding[0]):
            with pytest.raises(UnsupportedError, match="longer than its kernel"):
                method.promise(geometry)
            continue
        assert method.promise(geometry) is Promise.CONTRACTION
        weight = geometry.join(method(raw, geometry))
        matrix = materialize(geometry.operator(weight, (channels, length)))
        # Dense oracle in float64: a few n 2^-53.
        assert induced(matrix, method.metric(geometry)) <= 1 + 1e-12, method
        assert method.is_feasible(geometry.blocks(weight), geometry)


def test_the_limit_without_the_number_of_windows_is_not_enough() -> None:
    geometry = Geometry(1, 1, 1, (3,), (1,), ((1, 1),), (1,), Padding.CIRCULAR)
    kernel = torch.full((1, 1, 3), 3**-0.5, dtype=torch.float64)
    assert float(torch.linalg.svdvals(materialize(geometry.operator(kernel, (1, 6)))).max()) == pytest.approx(3**0.5)
    assert overlap(geometry) == 3
    assert overlap(Geometry(1, 2, 2)) == 1
    assert overlap(Geometry(1, 1, 1, (3, 3), (2, 3), ((0, 0), (0, 0)), (2, 1))) == 3


@pytest.mark.parametrize("method", [*CONTRACTIONS, *OTHER_NORMS], ids=str)
def test_promises_and_inverse(method: WeightMethod) -> None:
    geometry = Geometry(1, 5, 4)
    assert method.promise(geometry) is Promise.CONTRACTION
    weight = made(method, gaussian(5, 4) if not isinstance(method, LpBall) else method.radius * gaussian(5, 4) / 20)
    assert method.is_feasible(weight, geometry)
    torch.testing.assert_close(method(method.inverse(weight, geometry), geometry), weight, atol=1e-10, rtol=0)
    bound = method.norm(geometry)(geometry.operator(weight[0], (4,)))
    assert bound.metric == method.metric(geometry)
    assert float(bound.value) <= 1 + 1e-9


def test_matrices_only_and_bad_arguments() -> None:
    kernel = Geometry(1, 2, 2, (3,), (1,), ((1, 1),), (1,))
    with pytest.raises(UnsupportedError, match="RKO"):
        SingularClip().promise(kernel)
    with pytest.raises(UnsupportedError, match="Spectral"):
        LpBall(2.0).promise(kernel)
    with pytest.raises(ArgumentError, match="1, 2 or inf, got 3"):
        LpBall(3.0)
    with pytest.raises(ArgumentError, match=r"\(0, 1\], got 2"):
        LpBall(1.0, 2.0)
    with pytest.raises(ArgumentError, match="not l2->l2"):
        UnitLines(L2)
