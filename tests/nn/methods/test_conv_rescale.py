"""AOL and Rescale: contractions in every geometry, tight where they should be, invertible on their range."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import ArgumentError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic import rescaling_step as _one_step
from lipkit.nn.methods._arithmetic.filter_gram import absolute_sums, half_gram, merge_phases, split_phases
from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.methods._arithmetic.rescaling_step import one_step
from lipkit.nn.methods.rescale import AOL, Rescale, RescaledSide
from support.layers.checks import singular_values
from support.layers.geometries import filled
from support.layers.launches import Launches

METHODS = [AOL(), AOL(RescaledSide.SMALLER), Rescale(2), Rescale(3), Rescale(2, RescaledSide.SMALLER)]


def kernel3(rows: int, cols: int, stride: int = 1) -> Geometry:
    return Geometry(1, rows, cols, (3, 3), (stride, stride), ((1, 1), (1, 1)), (1, 1))


def drawn(geometry: Geometry, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(geometry.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_filter_gram_sums_are_those_of_the_dense_operator(stride: int) -> None:
    """Row sums of |A'A| of the circular operator on a large torus, where no two shifts fall together."""
    geometry = Geometry(1, 3, 2, (4,), (stride,), ((0, 0),), (1,))
    weight, size = drawn(geometry)[0], 12 * stride
    matrix = torch.zeros(3, size // stride, 2, size, dtype=torch.float64)
    for o in range(size // stride):
        for t in range(4):
            matrix[:, o, :, (o * stride + t) % size] += weight[..., t]
    rows = matrix.flatten(2).flatten(0, 1)
    dense = (rows.mT @ rows).abs().sum(1).reshape(2, size)
    found = majorant(split_phases(weight[None], geometry))[0].reshape(2, -1)
    # Positions that no tap meets at all have no phase; every other position has the sum of its own.
    for position in range(min(stride, 4)):
        torch.testing.assert_close(dense[:, position], found[:, position], rtol=1e-11, atol=0)


@given(st.integers(1, 3), st.data())
@settings(max_examples=20)
def test_half_gram_is_the_full_correlation(rank: int, data: st.DataObject) -> None:
    groups, rows, cols = (data.draw(st.integers(1, 3)) for _ in range(3))
    taps = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    kernel = torch.randn(groups, rows, cols, *taps, dtype=torch.float64)
    conv = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    half = half_gram(kernel).unflatten(2, tuple(2 * t - 1 for t in taps[1:]) or (1,))
    for group in range(groups):
        image = kernel[group].transpose(0, 1)
        full = conv(image, image, padding=tuple(t - 1 for t in taps)).transpose(0, 1)
        # Channels last; shifts from zero on in the first axis.
        full = full.movedim((0, 1), (-2, -1))[taps[0] - 1 :]
        torch.testing.assert_close(half[group].reshape(full.shape), full)
    whole = absolute_sums(half_gram(kernel))
    torch.testing.assert_close(whole, whole.mT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@given(st.integers(0, 3), st.data())
@settings(max_examples=20)
def test_one_step_is_the_majorant_with_all_its_derivatives(rank: int, data: st.DataObject) -> None:
    """Against autograd through the half of the shifts, which shares no product with it."""
    groups, rows, cols = (data.draw(st.integers(1, 3)) for _ in range(3))
    taps = tuple(data.draw(st.integers(1, 3 if rank < 3 else 2)) for _ in range(max(rank, 1)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    kernel, out, turn = (
        torch.randn(groups, rows, cols, *taps, dtype=torch.float64, generator=generator) for _ in range(3)
    )

    def slowly(kernel: Tensor) -> Tensor:
        return kernel * (0.9 * majorant(kernel).rsqrt()).reshape(groups, 1, cols, *(1,) * len(taps))

    def once(kernel: Tensor) -> Tensor:
        return one_step(kernel, 0.9)

    kernel = kernel / kernel.abs().amax()
    torch.testing.assert_close(once(kernel), slowly(kernel), rtol=1e-12, atol=0)
    found, expected = (
        torch.func.jvp(lambda kernel, fn=fn: torch.func.vjp(fn, kernel)[1](out)[0], (kernel,), (turn,))
        for fn in (once, slowly)
    )
    # Both have the rounding of sums of a hundred terms or so.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*(torch.func.jvp(fn, (kernel,), (turn,))[1] for fn in (once, slowly)))
    free = kernel.requires_grad_()
    torch.autograd.gradgradcheck(once, free)


@given(st.data())
@settings(max_examples=30)
def test_polyphase_is_undone(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    taps, stride, dilation = (tuple(data.draw(st.integers(1, 4)) for _ in range(rank)) for _ in range(3))
    geometry = Geometry(2, 2, 3, taps, stride, ((0, 0),) * rank, dilation)
    blocks = torch.randn(geometry.shape)
    assert torch.equal(merge_phases(split_phases(blocks, geometry), geometry), blocks)


def test_float32_majorant_dominates_the_exact_one() -> None:
    """The correction covers what float32 loses: T >= W'W, by eigenvalues of the pencil in float64."""
    for seed in range(20):
        weight = torch.randn(1, 40, 30, generator=torch.Generator().manual_seed(seed))
        for steps in (1, 2, 3):
            t = majorant(weight.unsqueeze(-1), steps)[0]
            pencil = weight[0].double() * t.rsqrt()
            # eigvalsh may be high by n 2^-53.
            assert float(torch.linalg.matrix_norm(pencil, 2)) <= 1 + 2.0**-47
        true = (weight[0].double().mT @ weight[0].double()).abs().sum(1)
        assert bool((majorant(weight.unsqueeze(-1))[0] >= true).all())
    # Equal entries are rounded the same way in every sum, so that errors add up.
    for value in torch.rand(50, generator=torch.Generator().manual_seed(0)):
        weight = value.expand(1, 2**16, 2).contiguous()
        true = (weight[0].double().mT @ weight[0].double()).sum(1)
        assert bool((majorant(weight.unsqueeze(-1))[0] >= true).all())


def test_one_step_counts_the_rounding_of_its_products() -> None:
    """Equal entries are rounded the same way in every sum, so that errors add up; the norm is known without a sum."""
    for value in torch.rand(50, generator=torch.Generator().manual_seed(0)):
        # A row and a column of their own for the largest entry, by which all others are divided.
        kernel = functional.pad(value.expand(1, 2**16, 2, 1), (0, 0, 0, 1, 0, 1))
        kernel[0, -1, -1, 0] = 1
        found = one_step(kernel, 1 - 2 * 2.0**-24)
        # All entries of a block are one number w, so its norm is w 2^(17 / 2); w and its factor are rounded once, which
        # the room is for.
        assert float(found[0, :-1, :-1].double().max()) * 2.0**8.5 <= 1


def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_one_step, "launches_count", lambda _: True)


@pytest.mark.parametrize("exponent", [-58, -30, 90, 110])
def test_one_step_does_not_see_the_scale(exponent: int) -> None:
    """Powers of two change no digit of the weight, and the gradient by one over them; from blocks of 2^-60 up."""
    generator = torch.Generator().manual_seed(0)
    kernel = torch.rand(2, 4, 3, 3, 2, generator=generator) - 0.5
    out = torch.randn(2, 4, 3, 3, 2, generator=generator)
    free, scaled = kernel.requires_grad_(), (kernel.detach() * 2.0**exponent).requires_grad_()
    weight, same = one_step(free, 0.9), one_step(scaled, 0.9)
    assert torch.equal(weight, same)
    expected, found = torch.autograd.grad(weight, free, out)[0], torch.autograd.grad(same, scaled, out)[0]
    assert torch.equal(found.double() * 2.0**exponent, expected.double())


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 1e-37, 1e-30, 1e30, 1e38])
def test_one_step_of_degenerate_numbers(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    on_an_accelerator(monkeypatch)
    layer = lnn.Conv2d(3, 3, 3, padding=1, method=AOL())
    raw = layer.get_parameter("parametrizations.weight.original")
    with torch.no_grad():
        torch.nn.init.uniform_(raw, -scale, scale, generator=torch.Generator().manual_seed(0))
        # Squares of these vanish.
        raw[:, 0] *= 1e-30
    values = singular_values(layer, (3, 5, 5))
    assert float(values[0]) <= 1
    # Blocks below 2^-60 are divided by that only, so the squares of the smallest vanish.
    assert (float(values[0]) > 0.3) == (scale >= 1e-30)
    assert bool((layer.weight[:, 0] == 0).all())
    (gradient,) = torch.autograd.grad(layer.weight.square().sum(), raw)
    assert bool(torch.isfinite(gradient).all())
    (gradient,) = torch.autograd.grad(layer.weight.sum() * 0, raw)
    assert bool((gradient == 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("stride", [1, 2])
def test_one_step_is_the_layer_on_every_device(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, stride: int
) -> None:
    """Weight and gradient as from the half of the shifts, which a CPU multiplies."""
    layer = lnn.Conv2d(4, 6, 3, stride, padding=1, groups=2, method=AOL()).to(dtype)
    filled(layer, "normal")
    raw = layer.get_parameter("parametrizations.weight.original")

    def found() -> tuple[Tensor, Tensor]:
        weight = layer.weight
        return weight.detach(), torch.autograd.grad(weight[:, 0].sum(), raw)[0]

    expected = found()
    on_an_accelerator(monkeypatch)
    # As many digits as the type has; what rounding may cost is counted in different order.
    digits = {torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found(), expected, rtol=digits, atol=digits)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*batching rule for aten..unfold_backward:UserWarning")
def test_one_step_under_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    on_an_accelerator(monkeypatch)
    geometry = kernel3(2, 3)
    raws, outs = drawn(Geometry(4, 2, 3, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1))).split([3, 1])
    raws, out = raws[:, None], outs[0]

    def value(raw: Tensor) -> Tensor:
        return (AOL()(raw, geometry) * out).sum().square()

    mapped = torch.vmap(torch.func.grad(value))(raws)
    torch.testing.assert_close(mapped, torch.stack([torch.func.grad(value)(raw) for raw in raws]))
    forward = torch.func.jacfwd(value)(raws[0])
    torch.testing.assert_close(forward, torch.func.grad(value)(raws[0]))
    twice = [outer(inner(value))(raws[0]) for outer, inner in _TWICE]
    for second in twice[1:]:
        torch.testing.assert_close(second, twice[0])


_TWICE = [
    (torch.func.jacrev, torch.func.jacrev), (torch.func.jacfwd, torch.func.jacrev),
    (torch.func.jacrev, torch.func.jacfwd), (torch.func.jacfwd, torch.func.jacfwd),
]  # fmt: skip


def test_launches_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small convolutions take as long as their operations need to be launched."""
    on_an_accelerator(monkeypatch)
    raw = drawn(kernel3(4, 4), torch.float32).requires_grad_()
    with Launches() as forward:
        weight = AOL()(raw, kernel3(4, 4))
    with Launches() as backward:
        torch.autograd.grad(weight, raw, torch.ones_like(weight))
    # The matrices of the code, and the matrix of ones.
    assert (forward.count, backward.count) == (17, 11 + 1)


def test_correction_costs_little() -> None:
    """Half a percent is the most that float32 may cost at 256 channels; an orthogonal start is the worst case seen."""
    geometry = kernel3(256, 256)
    torch.manual_seed(0)
    start = AOL().start(geometry)
    kept = AOL()(start, geometry)
    assert 0.997 < float(kept.norm() / start.norm()) < 1


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_orthogonal_weights_stay(method: lnn.WeightMethod) -> None:
    geometry = Geometry(1, 8, 8)
    start = torch.linalg.qr(drawn(geometry))[0]
    # Storing shrinks by 2^-39.
    torch.testing.assert_close(method(start, geometry), start, rtol=1e-11, atol=1e-15)


def test_smaller_side_keeps_wide_isometries_and_columns_do_not() -> None:
    geometry = Geometry(1, 4, 16)
    wide = torch.linalg.qr(drawn(Geometry(1, 16, 4)))[0].mT
    torch.testing.assert_close(AOL(RescaledSide.SMALLER)(wide, geometry), wide, rtol=1e-11, atol=1e-15)
    assert float(torch.linalg.matrix_norm(AOL()(wide, geometry)[0], 2)) < 0.9


def test_published_sequence_of_steps() -> None:
    """The distance from norm one falls with every step; six steps leave less than a percent."""
    geometry = Geometry(1, 50, 40)
    raw = drawn(geometry)
    norms = [float(torch.linalg.matrix_norm(Rescale(n)(raw, geometry)[0], 2)) for n in range(1, 7)]
    assert norms == sorted(norms)
    assert norms[0] < 0.85
    assert 0.99 < norms[-1] <= 1


def test_aol_as_published_for_matrices_and_kernels() -> None:
    """Against the formulas written out: r_i = sum_j |W'W|_ij, and all correlations of a kernel by torch's conv2d."""
    matrix = Geometry(1, 5, 4)
    raw = drawn(matrix)
    r = (raw[0].mT @ raw[0]).abs().sum(1)
    torch.testing.assert_close(AOL()(raw, matrix)[0], raw[0] * r.rsqrt(), rtol=1e-11, atol=0)
    geometry = kernel3(5, 4)
    raw = drawn(geometry)
    image = raw[0].transpose(0, 1)
    r = functional.conv2d(image, image, padding=2).abs().sum((1, 2, 3))
    torch.testing.assert_close(AOL()(raw, geometry)[0], raw[0] * r.rsqrt()[:, None, None], rtol=1e-11, atol=0)


def test_formula_as_printed_is_wrong() -> None:
    """Printed: W diag(r), scaling outputs. AOL has W diag(r^(-1/2)) with one r for each input."""
    geometry = Geometry(1, 2, 2)
    raw = torch.tensor([[0.0, 2.0], [0.1, 0.0]], dtype=torch.float64)
    r = (raw.mT @ raw).abs().sum(1)
    # With r itself inputs that were large grow; with r^(-1/2) at the outputs small ones are divided by 0.1.
    assert float(torch.linalg.matrix_norm(raw * r, 2)) == pytest.approx(8)
    assert float(torch.linalg.matrix_norm(r.rsqrt()[:, None] * raw, 2)) == pytest.approx(20)
    weight = AOL()(raw[None], geometry)[0]
    # Both columns get length one, less what storing takes off.
    torch.testing.assert_close(weight, raw * r.rsqrt(), rtol=1e-11, atol=0)
    assert 1 - 1e-11 <= float(torch.linalg.matrix_norm(weight, 2)) <= 1


def test_strided_kernels_are_tight() -> None:
    """Windows that do not overlap: an isometry of a patch is kept, which the bound for stride 1 would shrink."""
    geometry = Geometry(1, 4, 1, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
    patch = torch.linalg.qr(drawn(Geometry(1, 4, 4)))[0].reshape(geometry.shape)
    torch.testing.assert_close(AOL()(patch, geometry), patch, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("geometry", [Geometry(1, 5, 4), kernel3(4, 6), kernel3(6, 4, stride=2)], ids=str)
def test_inverse_on_the_range(method: lnn.WeightMethod, geometry: Geometry) -> None:
    weight = method(drawn(geometry), geometry)
    again = method(method.inverse(weight, geometry), geometry)
    # The fixed point is found to 1e-8.
    torch.testing.assert_close(again, weight, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("geometry", [Geometry(1, 3, 4), kernel3(2, 2), kernel3(2, 2, stride=2)], ids=str)
def test_gradients(method: lnn.WeightMethod, geometry: Geometry) -> None:
    raw = drawn(geometry).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: method(r, geometry), raw)
    small = drawn(Geometry(1, 2, 2)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda r: method(r, Geometry(1, 2, 2)), small)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-37, 1e30])
def test_degenerate_numbers(method: lnn.WeightMethod, scale: float) -> None:
    geometry = kernel3(3, 3)
    raw = (scale * drawn(geometry, torch.float32)).requires_grad_()
    weight = method(raw, geometry)
    weight.square().sum().backward()
    assert raw.grad is not None
    assert bool(torch.isfinite(weight).all())
    # The gradient of a function of degree zero grows like 1/scale; 1e37 squared is beyond float32.
    assert bool(torch.isfinite(raw.grad).all())


def test_zero_and_vanishing_columns() -> None:
    geometry = Geometry(1, 3, 3)
    raw = drawn(geometry, torch.float32)
    raw[..., 0] = 0
    # Squares of these vanish in float32: they count as zero, rather than as something of unknown size.
    raw[..., 1] = 1e-30
    weight = AOL()(raw.requires_grad_(), geometry)
    weight.square().sum().backward()
    assert bool((weight[..., 0] == 0).all())
    assert float(torch.linalg.matrix_norm(weight.detach()[0].double(), 2)) <= 1
    assert raw.grad is not None
    assert bool(torch.isfinite(raw.grad).all())


def test_columns_of_very_different_size_stay_below_one() -> None:
    for exponent in range(0, 40, 3):
        raw = drawn(Geometry(1, 6, 4), torch.float32, seed=exponent)
        raw[..., 1:3] *= 10.0**-exponent
        for steps in (1, 2, 3):
            weight = Rescale(steps)(raw, Geometry(1, 6, 4))[0].double()
            assert float(torch.linalg.matrix_norm(weight, 2)) <= 1 + 2.0**-50


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_maps_over_batches(method: lnn.WeightMethod) -> None:
    geometry = kernel3(2, 2)
    raws = torch.stack([drawn(geometry, seed=s) for s in range(3)])
    mapped = torch.vmap(lambda raw: method(raw, geometry))(raws)
    torch.testing.assert_close(mapped, torch.stack([method(raw, geometry) for raw in raws]))


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"1\.\.6"):
        Rescale(0)
    assert str(Rescale(2, RescaledSide.SMALLER)) == "rescaling, 2 steps on the smaller side"
    assert math.isclose(lnn.Conv2d(2, 2, 3, method=AOL()).gain, 1.0)
