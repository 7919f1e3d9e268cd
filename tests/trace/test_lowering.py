"""Lowering: what rows look like, how rules share an operation, and how gaps are reported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import CaptureError
from lipkit.linops import AvgPool, Compose, Conv, Dense, LinearOperator, Padding
from lipkit.trace.capture import capture
from lipkit.trace.network import Network
from lipkit.trace.nodes import Pointwise


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def parts_of(op: LinearOperator) -> list[LinearOperator]:
    return parts_of(op.outer) + parts_of(op.inner) if isinstance(op, Compose) else [op]


def all_parts(network: Network) -> list[LinearOperator]:
    return [part for op in network.blocks.values() for part in parts_of(op)]


def same(module: nn.Module, x: Tensor) -> Network:
    network = capture(module, x)
    with torch.no_grad():
        expected = module.eval()(x.clone())
        # float64, a handful of operations.
        assert torch.allclose(network(x).reshape(expected.shape), expected, rtol=0, atol=1e-12)
    return network


def image(channels: int = 2, size: int = 6) -> Tensor:
    return torch.randn(2, channels, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate", "zeros"])
def test_padding_becomes_part_of_the_convolution(mode: Any):
    network = same(nn.Conv2d(2, 3, 3, padding=(1, 0), padding_mode=mode).double(), image())
    (conv,) = [part for part in all_parts(network) if isinstance(part, Conv)]
    assert conv.mode is Padding(mode)
    assert conv.padding == ((1, 1), (0, 0))
    assert conv.in_shape == (2, 6, 6)


def test_zero_padding_before_a_padded_convolution_adds_up():
    network = same(nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(2, 3, 3, padding=1)).double(), image())
    (conv,) = [part for part in all_parts(network) if isinstance(part, Conv)]
    assert conv.padding == ((3, 1), (1, 2))


@pytest.mark.parametrize(
    "pad", [nn.ReflectionPad2d(1), nn.ConstantPad2d(1, 0.5), nn.ZeroPad2d((0, -1, 0, 0)), nn.CircularPad2d(1)]
)
def test_padding_that_a_convolution_cannot_do_stays_a_gather(pad: nn.Module):
    network = same(nn.Sequential(pad, nn.Conv2d(2, 3, 3, padding=1)).double(), image())
    (conv,) = [part for part in all_parts(network) if isinstance(part, Conv)]
    assert conv.mode is Padding.ZEROS
    assert conv.padding == ((1, 1), (1, 1))


def test_a_padded_value_that_is_used_twice_is_kept():
    conv = nn.Conv2d(2, 2, 3).double()
    _ = same(
        Lambda(lambda x: conv(functional.pad(x, (1, 1, 1, 1))) + functional.pad(x, (1, 1, 1, 1))[..., 1:-1, 1:-1]),
        image(),
    )


def test_structure_stays_visible():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)).double()
    kinds = {type(part) for part in all_parts(same(module, image()))}
    assert {Conv, AvgPool, Dense} <= kinds


def test_a_linear_layer_on_tokens_is_a_convolution_with_one_tap():
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    network = same(nn.Linear(3, 4).double(), x)
    (conv,) = [part for part in all_parts(network) if isinstance(part, Conv)]
    assert conv.kernel == (1,)
    assert conv.out_shape == (4, 5)


def test_equal_operations_are_one_row():
    network = same(Lambda(lambda x: torch.relu(x * 2) + torch.relu(x * 2) - torch.relu(x * 2.0)), image())
    nonlinear = [node for node in network.nodes if not (isinstance(node, Pointwise) and node.is_identity)]
    # 2 and 2.0 are different arguments; the first two are one.
    assert len(nonlinear) == 2


def test_rows_that_the_output_does_not_need_are_left_out():
    def run(x: Tensor) -> Tensor:
        _ = torch.special.erfcx(x)
        return x * 2

    assert len(same(Lambda(run), image()).nodes) <= 2


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.einsum("bchw,cd->bdhw", x, torch.ones(2, 3, dtype=x.dtype)),
        lambda x: torch.einsum("ah,bchw->bac", torch.ones(4, 6, dtype=x.dtype), x),
        lambda x: torch.tensordot(x, torch.ones(6, 2, dtype=x.dtype), dims=1),
        lambda x: x.mT,
        lambda x: torch.arange(6, dtype=x.dtype) @ x,
        lambda x: x.unflatten(-1, (2, 3)).diff(dim=-1),
        lambda x: functional.fold(functional.unfold(x, 3), (6, 6), 3),
        lambda x: torch.nn.functional.affine_grid(torch.eye(2, 3, dtype=x.dtype)[None], [1, 2, 4, 4], False).sum() * x,
        lambda x: x.clone().contiguous().double(),
        lambda x: torch.cat([x, torch.ones_like(x), torch.full_like(x, 2.0)], 1),
        lambda x: torch.hstack([x, x]) - torch.cat([x, x], 1) * 0.5,
        lambda x: x.view_as(x).broadcast_to(x.shape).swapaxes(1, 2).rot90(1, (2, 3)),
        lambda x: torch.index_fill(x, 1, torch.tensor([0]), 0.5),
        lambda x: torch.addcmul(x, torch.ones(6, dtype=x.dtype), torch.ones(6, dtype=x.dtype), value=0.5),
        lambda x: (x.double() - 1).lerp(x, 0.25) / torch.arange(1.0, 7.0, dtype=x.dtype),
        lambda x: sum(x.tensor_split(3, dim=2)),
        lambda x: x.sum((1, 2, 3), keepdim=True) + x,
    ],
)
def test_linear_code_of_many_styles(run: Callable[[Tensor], Tensor]):
    network = same(Lambda(run), image())
    assert all(isinstance(node, Pointwise) and node.is_identity for node in network.nodes)


def test_operations_without_a_rule_are_split_up_if_that_helps():
    # No rule speaks of trapezoid; torch defines it by slices, sums and products.
    network = same(Lambda(lambda x: torch.trapezoid(x, dx=0.5)), image())
    assert all(isinstance(node, Pointwise) and node.is_identity for node in network.nodes)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_are_split_up(kind: type[nn.RNN | nn.GRU | nn.LSTM]):
    layer = kind(3, 4, batch_first=True).double().eval()
    _ = same(Lambda(lambda x: layer(x)[0]), torch.randn(2, 3, 3, dtype=torch.float64))


def test_the_identity_is_captured():
    assert len(same(nn.Identity(), image()).nodes) == 1


def test_all_gaps_are_reported_at_once_with_their_places():
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.erfcx(x)

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Broken(), Broken()

        def forward(self, x: Tensor) -> Tensor:
            y = self.second(torch.relu(self.first(x)))
            return functional.dropout(y.reshape(len(x), 1, -1).floor().sum(2))

    with pytest.raises(CaptureError) as caught:
        _ = capture(Inner(), image())
    text = str(caught.value)
    assert text.startswith("4 operations of this model cannot be turned into a network:")
    lines = text.splitlines()[2:]
    for line, words in zip(
        lines,
        [
            ("special_erfcx", "first", "test_lowering.py:", "no rule", "declared_lipschitz"),
            ("special_erfcx", "second", "test_lowering.py:", "no rule", "declared_lipschitz"),
            ("floor", "(model)", "test_lowering.py:", "refused", "jumps"),
            ("dropout", "(model)", "test_lowering.py:", "random", "nn.Dropout"),
        ],
        strict=True,
    ):
        assert all(word in line for word in words)


def test_the_weights_may_not_depend_on_the_input():
    with pytest.raises(CaptureError, match=r"conv2d.*the kernel depends on the input"):
        _ = capture(Lambda(lambda x: functional.conv2d(x, x[:, :, :3, :3])), image()[:1])


def test_origins_name_the_operation_and_the_module():
    network = capture(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU())), torch.randn(1, 3))
    places = {(network.origin(k).op, network.origin(k).module) for k in range(1, network.sink)}
    assert {("linear", "0"), ("relu", "1.0")} <= places
