"""Kernels with groups, plain and transposed: against block-diagonal matrices that are written out, and true maps."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.dynamics import books, layer_stack, tracked_layers
from lipkit.analysis.dynamics.grouped_kernels import block_norms, blocks_of
from lipkit.analysis.dynamics.tracked_layers import AsMatrix, AsOperator, TrackedLayer
from lipkit.linops import materialize
from lipkit.regularizers.linear_layers import layers_of

PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, Tensor]:
    """A convolution of one to three axes with one to four groups, in float64, and an input of it."""
    axes, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups, inner, outer = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    kind: Any = (TRANSPOSED if transposed else PLAIN)[axes - 1]
    torch.manual_seed(draw(st.integers(0, 99)))
    made = kind(groups * inner, groups * outer, kernel, stride, bias=False, groups=groups).double()
    return made, torch.zeros(1, groups * inner, *(5 if axes == 1 else 4 if axes == 2 else 3 for _ in kernel)).double()


def track(module: nn.Module, x: Tensor, reading: AsMatrix | AsOperator) -> TrackedLayer:
    (layer,) = reading.track(layers_of(module, x))
    return layer


def written_out(module: Any) -> Tensor:
    """The block-diagonal matrix of a kernel, by torch's own function."""
    return torch.block_diag(*module.weight.detach().flatten(1).chunk(module.groups))


@given(convolutions())
def test_the_norm_and_the_gap_are_those_of_the_block_diagonal_matrix(made: tuple[Any, Tensor]):
    module, x = made
    layer, matrix = track(module, x, AsMatrix()), written_out(module)
    found = layer.measure(layer.weight(), 0)
    values = torch.linalg.svdvals(matrix)
    # Eigenvalues of a Gram matrix in float64: small values have half of the digits.
    assert found.value == pytest.approx(float(values[0]), rel=1e-12)
    square = matrix.shape[0] == matrix.shape[1]
    distances = [2 * float(values[0])] if square else [float(values[0])]
    distances += [float(values[0] - values[1])] if len(values) > 1 else []
    assert found.gap is not None
    assert found.gap == pytest.approx(min(distances), abs=1e-7 * found.value)
    op = layer.operator(layer.weight())
    torch.testing.assert_close(materialize(op).reshape(matrix.shape), matrix, rtol=0, atol=0)
    norms = [torch.linalg.matrix_norm(block, 2) for block in module.weight.detach().flatten(1).chunk(module.groups)]
    torch.testing.assert_close(block_norms(blocks_of(op)), torch.stack(norms), rtol=1e-12, atol=0)
    left, right = found.left.flatten(), found.right.flatten()
    torch.testing.assert_close(matrix @ right, found.value * left, rtol=0, atol=1e-10)


@given(convolutions())
def test_the_true_map_is_at_most_so_many_times_the_matrix(made: tuple[Any, Tensor]):
    module, x = made
    kernel, stride = (getattr(module, name) for name in ("kernel_size", "stride"))
    most = math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True)) ** 0.5
    layer = track(module, x, AsMatrix())
    images = torch.eye(x.numel(), dtype=torch.float64).reshape(-1, *x.shape[1:])
    norm = float(torch.linalg.matrix_norm(module(images).detach().flatten(1), 2))
    assert norm <= most * layer.measure(layer.weight(), 0).value * (1 + 1e-12)


def test_a_transposed_depthwise_kernel_has_the_norm_of_its_map():
    layer = nn.ConvTranspose2d(4, 4, 2, 2, groups=4, bias=False).double()
    nn.init.ones_(layer.weight)
    x = torch.zeros(1, 4, 3, 3).double()
    # Windows do not overlap, so the map is an isometry of each channel times the root of four ones.
    for reading in (AsMatrix(), AsOperator()):
        tracked = track(layer, x, reading)
        assert tracked.measure(tracked.weight(), 0).value == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_the_second_derivative_is_that_of_differences(kind: Any):
    torch.manual_seed(1)
    module = kind(6, 6, 3, groups=3, bias=False).double()
    layer = track(module, torch.zeros(1, 6, 4, 4).double(), AsMatrix())
    weight = layer.weight().clone()
    change = torch.randn_like(weight)
    step = 1e-4

    def norm(size: float) -> Tensor:
        moved = weight + size * change
        return torch.linalg.matrix_norm(torch.block_diag(*moved.flatten(1).chunk(3)), 2)

    second = (norm(step) - 2 * norm(0.0) + norm(-step)) / step**2
    # Roundings of values near 1 over the square of the step, and its own square.
    assert float(layer.measure(weight, 0).form(change)) == pytest.approx(float(second), rel=1e-5)


class Mobile(nn.Module):
    """An inverted bottleneck, as MobileNet has them, with a norm that does not mix samples."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.up, self.head = nn.ConvTranspose2d(4, 2, 2, 2, groups=2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(self.deep(self.wide(x).relu()).relu()).mean((2, 3)))


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_a_network_with_groups_is_profiled_along_its_block_diagonal_matrices(
    on_a_gpu: bool, monkeypatch: pytest.MonkeyPatch
):
    if on_a_gpu:
        for module in (tracked_layers, layer_stack, books):
            monkeypatch.setattr(module, "products_are_cheap", lambda _: True)
    torch.manual_seed(0)
    model, x, y = Mobile().double(), torch.randn(12, 2, 5, 5).double(), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with analysis.Profiler(model, optimizer, x[:1], every=2) as profile:
        for _ in range(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    history = profile.history
    assert history.refused == {}
    assert "groups as blocks on the diagonal" in history.label
    for layer in history.layers:
        module: Any = model.get_submodule(layer.name)
        truth = written_out(module) if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) else module.weight.detach()
        assert float(layer.norm[-1]) == pytest.approx(float(torch.linalg.matrix_norm(truth, 2)), rel=1e-12)
        booked = layer.drift + layer.curvature + layer.decay + layer.rest
        torch.testing.assert_close(booked, layer.norm.log().diff(), rtol=0, atol=1e-14)
        assert float(layer.drift.abs().sum()) > 0
        # Third order of small steps.
        assert float(layer.rest.abs().max()) < 0.05 * float(layer.drift.abs().max())
        assert layer.kappa is not None


@pytest.mark.parametrize(("places", "crosses"), [((0,), True), ((1,), False), ((0, 1), True)])
def test_a_step_crosses_by_the_norm_of_its_largest_block(places: tuple[int, ...], crosses: bool):
    # Two blocks of one row with norms 3 and 1, so the gap is 2 and steps of 1 do not cross; rows together have more.
    layer = nn.Conv1d(4, 2, 2, groups=2, bias=False).double()
    layer.weight.data = torch.zeros(2, 2, 2).double()
    layer.weight.data[0, 0, 0], layer.weight.data[1, 0, 0] = 3.0, 1.0
    step = torch.zeros(2, 2, 2).double()
    for place in places:
        step[place, 0, 0] = 1.1 if place == 0 else 0.9
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    with analysis.Profiler(layer, optimizer, torch.zeros(1, 4, 3).double(), every=1) as profile:
        layer.weight.grad = step
        optimizer.step()
    assert bool(profile.history.layers[0].crossings[0]) == crosses


def test_a_step_of_many_small_blocks_crosses_nothing():
    layer = nn.Conv1d(8, 8, 1, groups=8, bias=False).double()
    layer.weight.data = torch.tensor([3.0, *[1.0] * 7]).double().reshape(8, 1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    with analysis.Profiler(layer, optimizer, torch.zeros(1, 8, 3).double(), every=1) as profile:
        # Its Frobenius norm is 2.5, and its largest block moves by 0.9, less than half of the gap of 2.
        layer.weight.grad = torch.full((8, 1, 1), 0.9).double()
        optimizer.step()
    assert profile.history.layers[0].crossings.tolist() == [0]
