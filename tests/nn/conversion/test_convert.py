"""Conversion of ordinary models: the constant is proven, most of it is attained, and what cannot be is refused."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit import bounds
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn import MaxMin
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from lipkit.nn.conversion.transfer import ConversionStart, nearest_isometry, positive_isometry
from lipkit.nn.conversion.twin import LipschitzTwin, lipschitzify
from lipkit.nn.core.condense import condense
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.rko import RKO
from lipkit.nn.methods.spectral_normalization import Spectral
from support.jacobians import steepest
from support.unchecked import unchecked


class Block(nn.Module):
    """The block of ResNet-18, with its rectifiers in place."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(short, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """The shapes of ResNet-18 with few channels."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
            inputs = outputs
        self.features = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.features(x)), 1))


class Small(nn.Module):
    """A small network as users write them: functions, a view, dropout, GELU, two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, 3, padding=1)
        self.c2 = nn.Conv2d(6, 8, 3, padding=1)
        self.c3 = nn.Conv2d(6, 4, 1)
        self.drop = nn.Dropout(0.2)
        self.f1 = nn.Linear(12 * 16, 20)
        self.f2 = nn.Linear(20, 5)
        self.offset = nn.Parameter(torch.randn(20))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.c1(x)), 2)
        x = torch.cat((torch.relu(self.c2(x)), torch.tanh(self.c3(x))), 1)
        x = self.drop(2.0 * x.view(x.size(0), -1))
        return self.f2(functional.gelu(self.f1(x) + self.offset)) / 3 - 1


MODELS = {"ResNet-18": (ResNet18, (1, 3, 32, 32)), "small": (Small, (1, 1, 8, 8))}


@pytest.fixture(scope="module", params=MODELS)
def converted(request: pytest.FixtureRequest) -> tuple[nn.Module, LipschitzTwin, Tensor]:
    torch.manual_seed(0)
    build, shape = MODELS[request.param]
    model = build()
    twin, _ = lipschitzify(model, K=2.0, start=ConversionStart.POSITIVE)
    return model, twin.eval(), torch.rand(shape)


@pytest.mark.slow
def test_the_constant_is_proven_from_the_operations_and_nearly_attained(
    converted: tuple[nn.Module, LipschitzTwin, Tensor],
):
    """Condensed, so that nothing is declared: norms of plain weights, folded through sums and concatenations."""
    _, twin, example = converted
    assert twin.gain == 2.0
    plain = condense(twin).requires_grad_(False)
    found = lipkit.lipschitz(plain, example, bounds.DAG(), lower=bounds.Sampling(2))
    assert found.kind.certifies
    assert float(found.value) <= 2.0 * (1 + 1e-6)
    assert found.lower is not None
    assert float(found.lower.value) >= 0.3 * 2.0


def test_the_original_is_left_alone(converted: tuple[nn.Module, LipschitzTwin, Tensor]):
    model, twin, example = converted
    assert not any("lipkit" in type(module).__module__ for module in model.modules())
    assert twin(example).shape == model.eval()(example).shape
    assert all(not module.inplace for module in twin.modules() if isinstance(module, nn.ReLU))


@pytest.mark.parametrize("start", ConversionStart)
@pytest.mark.parametrize("K", [0.5, 3.0])
def test_jacobians_stay_below_the_constant_also_after_training(start: ConversionStart, K: float):
    torch.manual_seed(0)
    twin, _ = lipschitzify(Small(), K, start=start)
    step = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(5):
        step.zero_grad()
        (-twin(torch.randn(8, 1, 8, 8)).square().sum()).backward()
        step.step()
    twin = twin.double().eval()
    # A dense decomposition in float64 is off by some units of 2^-53.
    assert steepest(twin, (1, 1, 8, 8), points=1) <= K * (1 + 1e-12)


@pytest.mark.parametrize("conv", [Spectral(), RKO(Bjorck())])
def test_other_methods(conv: WeightMethod):
    torch.manual_seed(0)
    twin, report = lipschitzify(Small(), conv=conv)
    assert sum(str(conv) in row.now for row in report.rows) == 3
    assert steepest(twin.double().eval(), (1, 1, 8, 8), points=1) <= 1 + 1e-12


def test_weights_give_a_multiple_of_the_function_where_methods_only_divide():
    """Linear layers whose singular values are equal, rectifiers, a batch norm, a sum: all scales are known exactly."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.norm(self.a(x)))
            return self.c(x + 3 * torch.relu(self.b(x)))

    model = Model().double()
    for layer, size in ((model.a, 3.0), (model.b, 0.5), (model.c, 7.0)):
        layer.weight.data.copy_(size * torch.nn.init.orthogonal_(torch.empty(4, 4)).double())
    model.norm.get_buffer("running_mean").copy_(torch.randn(4))
    model.norm.get_buffer("running_var").copy_(torch.rand(4) + 0.5)
    model.norm.weight.data.copy_(torch.randn(4))
    model.norm.bias.data.copy_(torch.randn(4))
    model.eval()
    twin, _ = lipschitzify(model, start=ConversionStart.WEIGHTS)
    x = torch.randn(64, 4).double()
    found, wanted = twin(x), model(x)
    ratio = (found * wanted).sum() / wanted.square().sum()
    # One number for all samples and outputs; weights are stored with a shrink of 2^-39 and logits come from logarithms.
    # The matrices above are orthogonal in float32 only, which counts by its size, not by that of outputs near zero.
    assert torch.allclose(found, ratio * wanted, rtol=0, atol=1e-6 * float((ratio * wanted).detach().abs().max()))
    assert 0 < float(ratio.detach()) < 1


def test_nothing_is_lost_by_isometries_and_sorting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), MaxMin(), nn.Linear(6, 6), MaxMin(), nn.Linear(6, 6))
    twin, report = lipschitzify(model, start=ConversionStart.ISOMETRY)
    singular = torch.linalg.svdvals(torch.autograd.functional.jacobian(twin, torch.randn(1, 6)).reshape(6, 6))
    # Float32 isometries.
    assert torch.allclose(singular, torch.ones(6), atol=1e-5)
    assert [row.verdict for row in report.rows].count(ConversionVerdict.KEPT) == 2


@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (7, 3), (3, 7), (1, 5), (9, 4), (6, 1)])
def test_isometries_are_isometries(rows: int, cols: int):
    given = torch.randn(2, rows, cols, generator=torch.Generator().manual_seed(0)).double()
    for found in (nearest_isometry(given), positive_isometry(given)):
        small = found.mT @ found if rows >= cols else found @ found.mT
        assert torch.allclose(small, torch.eye(min(rows, cols)).double().expand_as(small), atol=1e-12)
    assert float(positive_isometry(given).min()) >= 0
    # A positive isometry near itself is itself.
    again = positive_isometry(positive_isometry(given))
    assert torch.allclose(again, positive_isometry(given), atol=1e-12)


class Bad(nn.Module):
    """Everything that has no constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.GLU(1))
        self.pool = nn.AdaptiveAvgPool2d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.inner(x))
        x = x * torch.sigmoid(x)
        x = functional.pad(x, (1, 1), mode="circular")
        return x[:, [0, 0]].expand(-1, 2, -1, -1)


def test_all_refusals_come_at_once_with_place_and_remedy():
    with pytest.raises(UnsupportedError) as refusal:
        lipschitzify(Bad())
    said = str(refusal.value)
    assert "7 operations of Bad" in said
    for place in ("inner.0", "inner.1", "pool", "mul", "pad", "getitem", "expand"):
        assert place in said
    assert "padding_mode='zeros'" in said
    assert "may repeat entries" in said


class Branching(nn.Module):
    """Control flow that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Aliased(nn.Module):
    """A tensor that is changed in place and used again."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu_(x)
        return y + x


@pytest.mark.parametrize("method", [lnn.SOC(), lnn.LOT((5, 5))], ids=str)
def test_kernels_that_are_not_plain_are_no_place_for_weights(method: WeightMethod) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.ReLU())
    with pytest.raises(UnsupportedError, match="the weight of Conv2d is no start for it; convert by AOC"):
        lipschitzify(model, conv=method)


def test_a_tensor_is_no_constant() -> None:
    with unchecked(), pytest.raises(ArgumentError, match="positive constant K, got tensor"):
        lipschitzify(nn.Linear(2, 2), cast(float, torch.zeros(1, 2)))


def test_models_that_cannot_be_read_are_refused():
    with pytest.raises(UnsupportedError, match="cannot trace"):
        lipschitzify(Branching())
    with pytest.raises(UnsupportedError, match="inplace=False"):
        lipschitzify(Aliased())
    with pytest.raises(ArgumentError, match="positive"):
        lipschitzify(nn.Linear(2, 2), K=0.0)


def test_sums_of_different_shapes_are_refused_when_they_meet():
    class Broadcast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.mean(-1, keepdim=True)

    twin, _ = lipschitzify(Broadcast())
    with pytest.raises(lipkit.errors.ShapeError, match="repeating"):
        twin(torch.ones(2, 3))


def test_the_report_prints_as_a_table():
    torch.manual_seed(0)
    _, report = lipschitzify(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.SELU(), nn.AvgPool2d(3, 2)), K=4.0)
    lines = str(report).splitlines()
    assert lines[0] == "K = 4: 0 kept, 4 changed, 0 skipped, 0 refused"
    assert len(lines) == 6
    assert lines[3].split()[:3] == ["1", "BatchNorm2d", "changed"]
    assert "1.758" in lines[4]
    assert len({line.index(word) for line, word in zip(lines[2:], ("changed",) * 4, strict=True)}) == 1


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), (1, 2, 4, 4)),
        (nn.Conv1d(4, 4, 3, groups=2, padding="same"), (1, 4, 6)),
        (nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
        (nn.LayerNorm(5), (1, 5)),
        (nn.PReLU(), (1, 5)),
        (nn.Hardswish(), (1, 5)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 1, 6, 6)),
        (nn.BatchNorm1d(3), (1, 3, 4)),
        (nn.Mish(), (1, 5)),
        (nn.AdaptiveMaxPool1d(1), (1, 2, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [ConversionStart.POSITIVE, ConversionStart.WEIGHTS])
def test_single_layers(layer: nn.Module, shape: tuple[int, ...], start: ConversionStart):
    twin, report = lipschitzify(layer, math.pi, start=start)
    assert len(report.rows) == 1
    assert steepest(twin.double().eval(), shape, points=2) <= math.pi * (1 + 1e-12)


class Mixed(nn.Module):
    """New parts of all kinds: a sum, a concatenation, a normalisation without parameters, a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        return torch.cat([y + self.second(y), nn.functional.gelu(y)], 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_new_parts_have_the_type_of_the_model(dtype: torch.dtype) -> None:
    twin, _ = lipschitzify(Mixed().to(dtype))
    tensors = [*twin.parameters(), *twin.buffers()]
    # Two layers with a bias, the share of the sum, eps of the normalisation, the sharpness of GELU.
    assert len(tensors) == 7
    assert {tensor.dtype for tensor in tensors} == {dtype}
