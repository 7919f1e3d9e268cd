"""Constants of layers where torch's own rules, broadcasting or other people's changes could break them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize as torch_parametrize

from lipkit import nn as lnn
from lipkit._compilers import _transforms_interfere
from lipkit._runtime import is_reading
from lipkit.errors import ArgumentError, LipkitError, ShapeError, UnsupportedError
from lipkit.nn.core.precision import _exact, exact_products
from lipkit.nn.methods._arithmetic import rescaling_step as _one_step
from lipkit.nn.methods._base import MatrixMethod


def slope(module: Callable[[Tensor], Tensor], x: Tensor) -> float:
    jacobian = torch.autograd.functional.jacobian(module, x)
    assert isinstance(jacobian, Tensor)
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), 2))


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_means_without_padding_on_every_short_image(kernel: int, stride: int) -> None:
    for padding in range(kernel // 2 + 1):
        pool = nn.AvgPool1d(kernel, stride, padding, count_include_pad=False)
        largest = max(
            slope(pool, torch.zeros(1, 1, n, dtype=torch.float64))
            for n in range(max(1, kernel - 2 * padding), 3 * kernel + 3)
        )
        # 1e-12: rounding of the decomposition.
        assert largest <= lnn.gain_of(pool) * (1 + 1e-12)


def test_the_mean_over_one_entry_has_constant_one() -> None:
    pool = nn.AvgPool1d(4, 4, 2, count_include_pad=False)
    # The only window of an image with one entry holds that entry alone: its mean is it, not a half of it.
    assert float(pool(torch.ones(1, 1, 1))) == 1
    assert lnn.gain_of(pool) >= 1


def test_norm_pooling_enlarges_windows_that_are_cut() -> None:
    pool = nn.LPPool1d(2, 3, ceil_mode=True)
    # torch multiplies the mean over one entry by three.
    assert slope(pool, torch.ones(1, 1, 4, dtype=torch.float64)) == pytest.approx(math.sqrt(3))
    assert lnn.gain_of(pool) >= math.sqrt(3)
    assert lnn.gain_of(nn.LPPool1d(2, 3)) == pytest.approx(1)


@pytest.mark.parametrize("factor", range(1, 64))
def test_upsampling_repeats_as_often_as_its_gain_says(factor: int) -> None:
    up = nn.Upsample(scale_factor=(float(factor), 1.0))
    counts = up(torch.eye(5).reshape(5, 1, 5, 1)).sum((1, 2, 3))
    try:
        gain = lnn.gain_of(up)
    except UnsupportedError:
        assert float(counts.max()) > factor
        return
    assert math.sqrt(float(counts.max())) <= gain


class Steep(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class LearntScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


@pytest.mark.parametrize(
    "module",
    [
        *(Steep(), Residual(nn.ReLU()), LearntScale()),
        *(nn.Softplus(threshold=0.0), nn.Softplus(beta=0.0), nn.CELU(-1.0)),
        *(nn.Softplus(beta=1e-6), nn.Softplus(beta=-1e-6)),
        nn.AdaptiveMaxPool2d(1, return_indices=True),
    ],
    ids=lambda module: str(module).split("\n", maxsplit=1)[0],
)
def test_what_only_looks_like_a_known_module_is_refused(module: nn.Module) -> None:
    with pytest.raises(UnsupportedError):
        lnn.gain_of(module)
    with pytest.raises(UnsupportedError):
        lnn.Sequential(module)


def test_softplus_is_accepted_where_its_jump_is_below_the_digits_of_float32() -> None:
    # log(1 + exp(-threshold)) / beta against 2^-24.
    for beta, threshold in ((0.04, 20.0), (1e-6, 31.0), (-1.0, 20.0)):
        assert lnn.gain_of(nn.Softplus(beta, threshold)) == 1
    with pytest.raises(UnsupportedError):
        lnn.gain_of(nn.Softplus(0.03))


def test_constants_below_one_are_known() -> None:
    """Against singular values of Jacobians at many points, where the supremum is approached."""
    points = [sign * torch.tensor([t, 0.0, -40.0], dtype=torch.float64) for t in (0.0, 0.5, -7.0) for sign in (1, -1)]
    for module, constant in (
        (nn.Sigmoid(), 1 / 4),
        (nn.Hardsigmoid(), 1 / 6),
        (nn.Softmax(0), 1 / 2),
        (nn.Softmin(0), 1 / 2),
    ):
        steep = max(float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(module, x), 2)) for x in points)
        assert lnn.gain_of(module) == pytest.approx(constant, rel=1e-9)
        # The points include the steepest one; torch's derivative of hardsigmoid is 1/6 rounded to float32.
        assert steep == pytest.approx(constant, rel=1e-7)


def test_steps_refuse_an_activation_that_jumps() -> None:
    with pytest.raises(UnsupportedError):
        lnn.SLL(4, activation=nn.Softplus(threshold=1.0))
    assert lnn.SLL(4, activation=nn.Softplus()).gain == 1


@pytest.mark.parametrize(
    "layer",
    [lnn.PReLU(4), lnn.Normalize((0.5,) * 4, (0.5,) * 4), lnn.ScaledResidual(lnn.Linear(1, 4))],
    ids=lambda layer: type(layer).__name__,
)
def test_one_channel_is_not_repeated(layer: nn.Module) -> None:
    # (x, x, x, x) has twice the norm of x.
    with pytest.raises(ShapeError):
        layer(torch.ones(2, 1))
    with pytest.raises(ShapeError):
        lnn.ScaledResidual(lnn.Linear(4, 1))(torch.ones(2, 4))


class Triple(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 3 * weight


def test_a_weight_that_is_not_the_method_s_states_no_gain() -> None:
    removed, tripled = lnn.Linear(4, 4), lnn.Linear(4, 4)
    torch_parametrize.remove_parametrizations(removed, "weight")
    torch_parametrize.register_parametrization(tripled, "weight", Triple())
    for layer in (removed, tripled):
        with pytest.raises(UnsupportedError):
            _ = layer.gain
    block = lnn.ShiftBlock(8, method=None)
    torch_parametrize.register_parametrization(block, "weight", Triple())
    with pytest.raises(UnsupportedError):
        _ = block.gain
    declared = float(block.declared_lipschitz((8, 3, 3)).value.detach())
    assert declared >= float(torch.linalg.matrix_norm(block.weight.detach().double(), 2)) > 2.9


@pytest.mark.parametrize("method", [lnn.Cayley(), lnn.Exponential()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rotations_of_the_largest_numbers_are_finite(method: MatrixMethod, dtype: torch.dtype) -> None:
    signs = torch.tensor([[1.0, 1, -1], [-1, 1, 1], [1, -1, 1], [1, 1, 1]], dtype=dtype)
    raw = (signs * torch.finfo(dtype).max).requires_grad_()
    weight = method.matrix(raw[None])
    weight.sum().backward()
    assert raw.grad is not None
    assert bool(torch.isfinite(weight).all())
    assert bool(torch.isfinite(raw.grad).all())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The types in which correlations are summed from now on."""
    types: list[torch.dtype] = []
    plain = _one_step.every_tap

    def watched(kernel: Tensor) -> Tensor:
        types.append(kernel.dtype)
        return plain(kernel)

    monkeypatch.setattr(_one_step, "every_tap", watched)
    return types


def test_correlations_are_summed_in_float64_where_products_lose_digits(seen: list[torch.dtype]) -> None:
    layer = lnn.Linear(4, 4, method=lnn.AOL())
    before = torch.get_float32_matmul_precision()
    try:
        for setting, exact in (("highest", True), ("high", False), ("medium", False)):
            torch.set_float32_matmul_precision(setting)
            seen.clear()
            _ = layer.weight
            assert exact_products(torch.zeros(1)) is exact
            assert seen == [torch.float32 if exact else torch.float64]
    finally:
        torch.set_float32_matmul_precision(before)


def test_programs_for_a_cpu_do_not_trust_a_setting_that_may_change(
    seen: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = lnn.Linear(4, 4, method=lnn.AOL())
    seen.clear()
    _ = layer.weight
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    _ = layer.weight
    assert seen == [torch.float32, torch.float64]
    assert exact_products(torch.zeros(1, dtype=torch.float64))


def test_the_mark_for_compilers_is_the_one_torch_sets() -> None:
    @torch.compiler.assume_constant_result
    def marked() -> bool:
        return True

    for ours in (_exact, _transforms_interfere, is_reading):
        assert vars(marked).items() <= vars(ours).items()


def test_norm_pooling_keeps_the_range_of_float16() -> None:
    pool = lnn.L2NormPool1d(2)
    for size in (300.0, 2.0**-10):
        x = torch.full((1, 1, 2), size, dtype=torch.float16)
        # sqrt(2) size, to the three digits of the type.
        assert float(pool(x)) == pytest.approx(math.sqrt(2) * size, rel=2e-3)


@pytest.mark.parametrize("make", [lambda: lnn.PReLU(start=2.0), lambda: lnn.Softplus(beta=0.0)])
def test_arguments_without_meaning_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(LipkitError):
        make()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's, for a kernel of nothing
@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        ({"kernel_size": (3, 3, 3)}, r"kernel_size of Conv2d needs 2 whole numbers of at least 1.* got \(3, 3, 3\)"),
        ({"kernel_size": 0}, r"kernel_size of Conv2d needs .* got \(0, 0\)"),
        ({"kernel_size": 3, "stride": 0}, r"stride of Conv2d needs .* got \(0, 0\)"),
        ({"kernel_size": 3, "dilation": 0}, r"dilation of Conv2d needs .* got \(0, 0\)"),
        ({"kernel_size": 3, "padding": -1}, r"padding of Conv2d needs .* at least 0.* got \(-1, -1\)"),
    ],
)
def test_numbers_for_each_axis(wrong: dict[str, Any], got: str) -> None:
    """torch takes most of these when it builds a layer, and refuses images."""
    for method in (lnn.AOC(), lnn.AOL(), lnn.SOC()):
        with pytest.raises(ShapeError, match=got):
            lnn.Conv2d(2, 2, **wrong, method=method)
    with pytest.raises(ShapeError, match="needs"):
        lnn.parametrize(nn.Conv2d(2, 2, **wrong), "weight", lnn.AOL())


def test_padding_that_keeps_the_size_is_refused_beside_a_stride() -> None:
    why = r"padding='same' keeps the size of an image, and stride=\(?[12].* divides it; give the padding as a number"
    for kind, stride in ((lnn.Conv1d, 2), (lnn.Conv2d, (1, 2)), (lnn.Conv3d, 2)):
        with pytest.raises(ArgumentError, match=why):
            kind(2, 2, 3, stride, "same")
    assert lnn.Conv2d(2, 2, 3, (1, 1), "same")(torch.zeros(1, 2, 5, 5)).shape == (1, 2, 5, 5)
