"""No record has a gradient above its limit, and limits are attained where they can be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import losses, privacy
from lipkit.bound import Kind
from lipkit.privacy import Sensitivity
from support.record_gradients import Mean, climb, drawn_records, gradient_norms, largest_ratios, log_heights

RADIUS = 2.0
IMAGE = (2, 6, 6)


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(x)


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(torch.relu(self.part(x)))


class Joined(nn.Module):
    """Two branches side by side."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.other(x).sigmoid()], 1)


def images(*parts: nn.Module) -> nn.Module:
    """Parts on images, then a head for three classes."""
    body = nn.Sequential(*parts, nn.Flatten())
    size = body(torch.zeros(2, *IMAGE)).shape[1]
    return nn.Sequential(*body, nn.Linear(size, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)), (5,)),
    "gelu": (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), (5,)),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, 3)), (5,)),
    "softplus": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Softplus(), nn.Linear(7, 3)), (5,)),
    "hardtanh": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Hardtanh(), nn.Linear(7, 3)), (5,)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4, eps=0.1), nn.Linear(4, 3)), (5,)),
    "tokens": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)), (3, 4)),
    "residual": (lambda: nn.Sequential(Residual(nn.Sequential(nn.Linear(5, 5), nn.ReLU())), nn.Linear(5, 3)), (5,)),
    "twice": (lambda: nn.Sequential(Twice(nn.Linear(5, 5)), nn.Linear(5, 3)), (5,)),
    "joined": (lambda: nn.Sequential(Joined(nn.Linear(5, 4), nn.Linear(5, 4)), nn.Linear(8, 3)), (5,)),
    "bjorck": (lambda: nn.Sequential(lnn.Linear(5, 8), lnn.MaxMin(), lnn.Linear(8, 3)), (5,)),
    "cpl": (lambda: nn.Sequential(lnn.CPL(5, 8), lnn.Linear(5, 3)), (5,)),
    "sll": (lambda: nn.Sequential(lnn.SLL(5, 8), lnn.SLL(5), lnn.Linear(5, 3)), (5,)),
    "whole declared": (lambda: lnn.Sequential(lnn.Linear(5, 8), lnn.MaxMin(), lnn.Linear(8, 3), K=2.0), (5,)),
    "reflect": (lambda: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.ReLU()), IMAGE),
    "replicate": (lambda: images(nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"), nn.ReLU()), IMAGE),
    "circular": (lambda: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.GELU()), IMAGE),
    "strided": (lambda: images(nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 2, dilation=2)), IMAGE),
    "transposed": (lambda: images(nn.ConvTranspose2d(2, 3, 4, 2, 1), nn.ReLU(), nn.AvgPool2d(2)), IMAGE),
    "pooled": (lambda: images(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3, 1), nn.ReLU()), IMAGE),
    "cpl of images": (lambda: images(lnn.CPLConv(2, 3), lnn.SLLConv(2, 3, padding_mode="circular")), IMAGE),
    "aoc": (
        lambda: images(lnn.Conv2d(2, 4, 3, padding=1), lnn.MaxMin(), nn.BatchNorm2d(4).eval().requires_grad_(False)),
        IMAGE,
    ),
}


def build(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make(), shape


def labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


@pytest.mark.parametrize("name", MODELS)
def test_no_record_is_above_its_limit(name: str):
    model, shape = build(name)
    model = model.double()
    loss = losses.TauCrossEntropy(tau=3.0)
    limits = privacy.sensitivity(model, loss, privacy.Inputs(shape, RADIUS))
    plain = lnn.condense(model)
    assert list(limits) == [n for n, p in plain.named_parameters() if p.requires_grad]
    assert {bound.kind for bound in limits.values()} == {Kind.UPPER}
    x = drawn_records(shape, RADIUS, 600)
    norms = gradient_norms(plain, loss, x, labels(600))
    ratios = largest_ratios(limits, norms)
    # 2^-7 is room for float32, and these gradients are float64: what fills it is a defect of the bound.
    assert max(ratios.values()) * (1 + 2.0**-7) <= 1 + 1e-9, ratios
    total = torch.stack(list(norms.values())).nan_to_num(0.0).square().sum(0).sqrt().max()
    assert float(total) <= float(limits.total.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "pooled"])
def test_records_that_climb_stay_below_in_float32_too(name: str):
    model, shape = build(name)
    loss = losses.TauCrossEntropy(tau=3.0)
    limits = privacy.sensitivity(model, loss, privacy.Inputs(shape, RADIUS))
    plain = lnn.condense(model)
    y = labels(60)
    x = drawn_records(shape, RADIUS, 60, torch.float32)
    found = climb(lambda at: gradient_norms(plain, loss, at, y), x, RADIUS)
    climbed = gradient_norms(plain, loss, privacy.Inputs(shape, RADIUS)(found), y)
    after = largest_ratios(limits, climbed)
    assert max(after.values()) <= 1, after
    # The climb is one: gradients are larger than those of the records it starts from, at least by a tenth.
    start = gradient_norms(plain, loss, x, y)
    assert float((log_heights(climbed) - log_heights(start)).mean()) > 0.1


@pytest.mark.parametrize("radius", [0.5, 30.0])
def test_isometries_attain_their_limits(radius: float):
    # 2^-7 of room leaves 0.9922, and rounding of a pass a little less.
    torch.manual_seed(1)
    model = nn.Sequential(lnn.Linear(8, 8, bias=False), lnn.MaxMin(), lnn.Linear(8, 8, bias=False)).double()
    loss = losses.TauCrossEntropy(tau=1000.0, divided=True)
    limits = privacy.sensitivity(model, loss, privacy.Inputs((8,), radius))
    x = drawn_records((8,), radius, 200)
    ratios = largest_ratios(limits, gradient_norms(lnn.condense(model), loss, x, labels(200, 8)))
    assert min(ratios.values()) > 0.99, ratios
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize(("kernel", "factor"), [(3, 3.0), (5, 5.0), (1, 1.0)])
def test_circular_convolutions_attain_the_root_of_their_taps(kernel: int, factor: float):
    layer = nn.Conv2d(1, 1, kernel, padding=kernel // 2, padding_mode="circular")
    model = nn.Sequential(layer, nn.Flatten()).double()
    limits = privacy.sensitivity(model, Mean(), privacy.Inputs((1, 6, 6), RADIUS))
    # Each row is allowed 2^-16 for a pass in float32.
    assert float(limits["0.weight"].value) == pytest.approx(factor * RADIUS * (1 + 2.0**-7), rel=1e-4)
    assert float(limits["0.bias"].value) == pytest.approx(6 * (1 + 2.0**-7), rel=1e-4)
    x = torch.full((1, 1, 6, 6), RADIUS / 6, dtype=torch.float64)
    ratios = largest_ratios(limits, gradient_norms(model, Mean(), x, torch.zeros(1)))
    assert min(ratios.values()) > 0.99, ratios


def test_the_limits_of_an_orthogonal_net_are_those_of_its_loss():
    # Printed for the six kernels of a mixer with orthogonal layers, radius 3: sqrt 2 * 3 = 4.2426 (004-b 6).
    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (lnn.Linear(6, 6, bias=False), lnn.MaxMin())]
    limits = privacy.sensitivity(nn.Sequential(*parts).double(), nn.CrossEntropyLoss(), privacy.Inputs((6,), 3.0))
    found = [float(bound.value) / (1 + 2.0**-7) for bound in limits.values()]
    # A pass is allowed 2^-16 in every row.
    assert found == pytest.approx([4.2426407] * 3, rel=5e-4)


def test_the_last_layer_counts_with_its_pairs_of_rows():
    # p - e_y is a mixture of e_a - e_y: the longest difference of two rows, not sqrt 2 times the norm.
    torch.manual_seed(0)
    head = torch.randn(10, 32, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 10, bias=False)).double()
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(32))
        model.get_parameter("1.weight").copy_(head)
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((32,), 1.0))
    pairs = max(float((a - b).norm()) for a in head for b in head)
    assert float(limits["0.weight"].value) == pytest.approx(pairs * (1 + 2.0**-7), rel=1e-3)
    assert pairs < 0.95 * 2**0.5 * float(torch.linalg.matrix_norm(head, 2))


def test_a_tensor_that_is_used_twice_has_the_sum():
    torch.manual_seed(0)
    model = nn.Sequential(Twice(nn.Linear(4, 4, bias=False))).double()
    with torch.no_grad():
        model.get_parameter("0.part.weight").copy_(torch.eye(4))
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))
    assert float(limits["0.part.weight"].value) == pytest.approx(2 * 2**0.5 * (1 + 2.0**-7), rel=1e-3)


def test_a_captured_model_follows_its_tensors():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    known = Sensitivity(lnn.condense(model), privacy.Inputs((4,), 1.0))
    first = known.limits(nn.CrossEntropyLoss())
    with torch.no_grad():
        for p in [*model.parameters(), *known._plain.parameters()]:
            p *= 3
    second = known.limits(nn.CrossEntropyLoss())
    again = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))
    assert second.values_by_name() == pytest.approx(again.values_by_name())
    assert second.values_by_name()["0.weight"] > 2.9 * first.values_by_name()["0.weight"]


def test_frozen_tensors_are_constants():
    model = nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3))
    model[1].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((4,), 1.0))
    assert list(limits) == ["0.weight", "2.weight", "2.bias"]
    assert limits.sizes == {"0.weight": 20, "2.weight": 15, "2.bias": 3}


@pytest.mark.parametrize("limit", [0.05, 100.0])
def test_clipped_gradients_are_below_their_limits(limit: float):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    clip, loss = privacy.Fixed(limit), nn.CrossEntropyLoss()
    limits = privacy.sensitivity(model, loss, privacy.Inputs((4,), RADIUS), clip)
    x = drawn_records((4,), RADIUS, 60)
    ratios = largest_ratios(limits, gradient_norms(model, loss, x, labels(60), clip))
    assert max(ratios.values()) <= 1
    assert float(limits["2.bias"].value) == pytest.approx(min(limit, 2**0.5) * (1 + 2.0**-7), rel=1e-6)
