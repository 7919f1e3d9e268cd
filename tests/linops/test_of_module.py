"""`of` against the modules of torch themselves: of(module).apply(x) = module(x) - module(0)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from lipkit import linops
from lipkit.linops import AvgPool, Compose, Conv, ConvTranspose, Dense, Index, LinearFunction, Reshape, Shape
from support.operators.conv_geometries import built, conv_modules, conv_transpose_operators


def check(module: nn.Module, in_shape: Shape, batch: int = 3) -> None:
    """Agreement of the operator with the module, and of its adjoint with autograd through the module."""
    op = linops.of(module, in_shape)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *in_shape, dtype=torch.float64, generator=generator).requires_grad_()
    expected = module(x) - module(torch.zeros_like(x))
    assert expected.shape == (batch, *op.out_shape)
    found = op.apply(x.detach())
    # Both sides are sums of at most a few hundred float64 products of size one, in different orders.
    assert (found - expected).abs().max() <= 1e-12 * (1 + expected.abs().max())
    y = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    (pulled,) = torch.autograd.grad(expected, x, y)
    assert (op.adjoint(y) - pulled).abs().max() <= 1e-12 * (1 + pulled.abs().max())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")  # torch pads a copy.
@settings(max_examples=200)
@given(built(conv_modules()))
def test_convolutions(drawn: tuple[nn.Module, Shape]) -> None:
    module, in_shape = drawn
    assert isinstance(linops.of(module, in_shape), Conv)
    check(module, in_shape)


@settings(max_examples=100)
@given(conv_transpose_operators(), st.booleans())
def test_transposed_convolutions(op: ConvTranspose, bias: bool) -> None:
    kinds = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
    c_in, c_out = op.in_shape[0], op.out_shape[0]
    module = kinds[len(op.spatial)](
        c_in,
        c_out,
        op.kernel,
        op.stride,
        op.padding,
        op.output_padding,
        op.groups,
        bias,
        op.dilation,
        dtype=torch.float64,
    )
    assert linops.of(module, op.in_shape).out_shape == op.out_shape
    check(module, op.in_shape)


def batch_norm(kind: type[nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d], affine: bool) -> nn.Module:
    module = kind(3, affine=affine, eps=0.1)
    assert module.running_var is not None
    assert module.running_mean is not None
    module.running_var.copy_(torch.tensor([0.5, 2.0, 1e-3]))
    module.running_mean.copy_(torch.tensor([1.0, -2.0, 0.0]))
    if affine:
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    return module.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "in_shape"),
    [(nn.BatchNorm1d, (3,)), (nn.BatchNorm1d, (3, 4)), (nn.BatchNorm2d, (3, 4, 2)), (nn.BatchNorm3d, (3, 2, 2, 2))],
)
def test_batch_norm(kind: type[nn.BatchNorm1d], in_shape: Shape, affine: bool) -> None:
    check(batch_norm(kind, affine).double(), in_shape)


def test_batch_norm_in_float64_has_the_scale_of_real_arithmetic() -> None:
    module = batch_norm(nn.BatchNorm1d, affine=True)
    found = linops.of(module, (3,)).to(torch.float64).apply(torch.ones(3, dtype=torch.float64))
    tensors = module.state_dict()
    expected = tensors["weight"].double() / (tensors["running_var"].double() + 0.1).sqrt()
    # Four roundings of 2^-53; the widened float32 scale would be wrong by 2^-24 = 6e-8.
    assert (found / expected - 1).abs().max() <= 1e-15


@pytest.mark.parametrize("in_shape", [(4,), (3, 4), (2, 3, 4)])
def test_linear_on_leading_axes(in_shape: Shape) -> None:
    module = nn.Linear(4, 5).double()
    check(module, in_shape)
    assert isinstance(linops.of(module, in_shape), Dense if len(in_shape) == 1 else Compose)


UNIFORM = [
    (nn.AvgPool1d(3), (2, 7)),
    (nn.AvgPool1d(3, 2, 1), (2, 7)),
    (nn.AvgPool2d(2), (2, 5, 6)),
    (nn.AvgPool2d((2, 3), stride=(1, 2), padding=(1, 0)), (2, 5, 6)),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False, divisor_override=3), (1, 4, 5)),
    (nn.AvgPool2d(2, ceil_mode=True), (2, 4, 6)),
    (nn.AvgPool3d(2, 1, 1), (2, 3, 3, 2)),
    (nn.AdaptiveAvgPool1d(3), (2, 6)),
    (nn.AdaptiveAvgPool2d((2, None)), (2, 4, 3)),
    (nn.AdaptiveAvgPool2d(1), (2, 5, 3)),
    (nn.AdaptiveAvgPool3d((1, 2, 3)), (2, 2, 2, 3)),
]
UNEVEN = [
    (nn.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 7)),
    (nn.AvgPool2d(2, ceil_mode=True), (2, 5, 6)),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 6, 5)),
    (nn.AvgPool2d(2, ceil_mode=True, divisor_override=5), (2, 5, 6)),
    (nn.AvgPool3d(2, 1, 1, count_include_pad=False), (1, 3, 2, 3)),
    (nn.AdaptiveAvgPool1d(4), (2, 6)),
    (nn.AdaptiveAvgPool2d((2, 3)), (2, 5, 3)),
]


@pytest.mark.parametrize(("module", "in_shape"), UNIFORM, ids=str)
def test_average_pooling_with_one_divisor(module: nn.Module, in_shape: Shape) -> None:
    assert isinstance(linops.of(module, in_shape), AvgPool)
    check(module, in_shape)


@pytest.mark.parametrize(("module", "in_shape"), UNEVEN, ids=str)
def test_average_pooling_with_several_divisors(module: nn.Module, in_shape: Shape) -> None:
    assert isinstance(linops.of(module, in_shape), LinearFunction)
    check(module, in_shape)


MOVES = [
    (nn.ZeroPad1d((1, 2)), (2, 3)),
    (nn.ZeroPad2d((1, 2, 0, 3)), (2, 3, 4)),
    (nn.ZeroPad2d((-1, 2, 1, -2)), (2, 3, 4)),
    (nn.ZeroPad3d(1), (1, 2, 3, 2)),
    (nn.ConstantPad1d(2, 0.0), (2, 3)),
    (nn.ConstantPad2d((1, 0, 2, 1), 3.5), (2, 3, 2)),
    (nn.ConstantPad3d(1, 0.0), (1, 2, 2, 2)),
    (nn.CircularPad1d((3, 1)), (2, 3)),
    (nn.CircularPad2d((1, 2, 0, 3)), (2, 3, 4)),
    (nn.CircularPad3d(1), (1, 2, 3, 2)),
    (nn.ReflectionPad1d((2, 1)), (2, 3)),
    (nn.ReflectionPad2d((1, 3, 0, 2)), (2, 3, 4)),
    (nn.ReflectionPad3d(1), (1, 2, 3, 2)),
    (nn.ReplicationPad1d((5, 1)), (2, 3)),
    (nn.ReplicationPad2d((1, 4, 0, 2)), (2, 3, 4)),
    (nn.ReplicationPad3d(2), (1, 2, 3, 2)),
    (nn.PixelShuffle(2), (8, 3, 2)),
    (nn.PixelUnshuffle(2), (2, 4, 6)),
    (nn.ChannelShuffle(2), (4, 3, 2)),
    (nn.Upsample(scale_factor=2), (2, 3)),
    (nn.Upsample(size=(5, 7), mode="nearest-exact"), (2, 3, 4)),
]


@pytest.mark.parametrize(("module", "in_shape"), MOVES, ids=str)
def test_modules_that_move_entries(module: nn.Module, in_shape: Shape) -> None:
    assert isinstance(linops.of(module, in_shape), Index)
    check(module, in_shape)


@pytest.mark.parametrize(
    ("module", "in_shape"),
    [
        (nn.Upsample(scale_factor=2, mode="linear"), (2, 3)),
        (nn.Upsample(size=(5, 7), mode="bilinear", align_corners=True), (2, 3, 4)),
        (nn.Upsample(scale_factor=1.5, mode="bicubic"), (2, 4, 4)),
        (nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 3, 2)),
    ],
    ids=str,
)
def test_interpolation(module: nn.Module, in_shape: Shape) -> None:
    assert isinstance(linops.of(module, in_shape), LinearFunction)
    check(module, in_shape)


@pytest.mark.parametrize(
    ("module", "in_shape"),
    [
        (nn.Identity(), (2, 3)),
        (nn.Flatten(), (2, 3, 4)),
        (nn.Flatten(2), (2, 3, 4)),
        (nn.Flatten(1, 2), (2, 3, 4)),
        (nn.Unflatten(1, (2, 3)), (6, 2)),
        (nn.Unflatten(-1, (2, 1)), (6, 2)),
        (nn.Dropout().eval(), (3,)),
        (nn.Dropout2d().eval(), (3, 2, 2)),
        (nn.AlphaDropout().eval(), (3,)),
        (nn.Sequential(), (3, 2)),
    ],
    ids=str,
)
def test_reshapes(module: nn.Module, in_shape: Shape) -> None:
    assert isinstance(linops.of(module, in_shape), Reshape)
    check(module, in_shape)


def test_sequential_composes_and_repeats_a_repeated_module() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
        batch_norm(nn.BatchNorm2d, affine=True),
        nn.AvgPool2d(2),
        nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, 6)),
        shared,
        shared,
    )
    check(model.double().eval(), (2, 4, 5))


@pytest.mark.parametrize(
    "wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrized_modules(wrap) -> None:
    check(wrap(nn.Linear(4, 3).double()).eval(), (4,))
    check(wrap(nn.Conv1d(2, 3, 2).double()).eval(), (2, 5))


def test_the_operator_is_live() -> None:
    module = nn.Conv1d(2, 3, 2).double()
    op = linops.of(module, (2, 5))
    assert op.tensors()[0] is module.weight
    op.apply(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
    assert module.weight.grad is not None
    parametrized = parametrizations.weight_norm(nn.Linear(4, 3).double())
    linops.of(parametrized, (4,)).apply(torch.ones(4, dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None for name, p in parametrized.named_parameters() if name != "bias")
