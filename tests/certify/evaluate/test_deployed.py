"""Every batch is compared with the model as it runs, and what its precision decides otherwise is counted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import Bound, Kind
from lipkit import nn as lnn
from lipkit.bounds import DAG
from lipkit.certify import Evaluation, accuracy, find_warnings, head_pairwise
from lipkit.certify.radii.forward import Forward
from lipkit.errors import CaptureError
from lipkit.trace import Network, agreement

STATED = Bound.from_value(1e4, Kind.UPPER, "large enough")


def inputs(count: int = 40, size: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def batches(x: Tensor, y: Tensor, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def deep(layers: int = 3, width: int = 16) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
        made = nn.Sequential(nn.Linear(8, width), nn.Tanh(), *hidden, nn.Linear(width, 4)).eval()
        for part in made:
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight, nonlinearity="tanh")
                nn.init.zeros_(part.bias)
        last = made[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            # Classes that differ by a few percent, so that eight bits decide some samples otherwise.
            last.weight.copy_(last.weight[:1] + 0.03 * torch.randn(4, width))
    return made


def exact(model: nn.Sequential, x: Tensor) -> Tensor:
    """The classes in float64, by plain arithmetic on the weights as they are stored."""
    z = x.double()
    for part in model:
        z = (
            z @ part.weight.detach().double().T + part.bias.detach().double()
            if isinstance(part, nn.Linear)
            else z.tanh()
        )
    return z.argmax(1)


class Secret(nn.Module):
    """Does something else for inputs that are large in every entry, while nobody exports it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = deep()

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        if not torch.compiler.is_exporting() and bool((x > 5).all(1).any()):
            z = z + (x > 5).all(1, keepdim=True) * torch.tensor([0.0, 0.0, 3.0, 0.0])
        return z


def test_a_model_that_computes_something_else_on_later_data_is_refused():
    model, x = Secret().eval(), inputs(24)
    y = exact(model.inner, x)
    with torch.no_grad():
        bound = head_pairwise(model, x[:1], DAG())
    assert accuracy(model, batches(x, y), bound, [0.01]).otherwise == 0
    x[21] = 6.0
    with pytest.raises(CaptureError, match=r"does not compute what the model computes: at sample 21 entry 2"):
        accuracy(model, batches(x, y), bound, [0.01])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_half_precision_decides_otherwise_is_counted(dtype: torch.dtype):
    model, x = deep().to(dtype), inputs(400).to(dtype)
    truth = exact(model, x)
    with torch.no_grad():
        rounded = model(x).argmax(1)
    expected = int((truth != rounded).sum())
    found = accuracy(model, batches(x, truth, 50), STATED, [1e-6])
    assert found.otherwise == expected
    # bfloat16 has 8 bits, so that among 400 samples some change; float16 may change none of these.
    assert expected > 0 or dtype is torch.float16
    # Labels are the exact classes, so that everything is right in float64.
    assert found.overall.clean.count == 400


def test_casts_that_are_on_where_it_runs_count():
    model, x = deep(), inputs(400)
    truth = exact(model, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = model(x).argmax(1)
    expected = int((truth != rounded).sum())
    assert expected > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert accuracy(model, batches(x, truth, 50), STATED, [1e-6]).otherwise == expected
    plain = accuracy(model, batches(x, truth, 50), STATED, [1e-6])
    assert plain.otherwise == 0
    assert "otherwise" not in str(plain)


def test_the_count_is_said_stored_and_read_again(tmp_path: Path):
    model, x = deep().bfloat16(), inputs(400).bfloat16()
    data = batches(x, exact(model, x), 50)
    found = accuracy(model, data, STATED, [1e-6], records=tmp_path)
    words = f"decides {found.otherwise} of 400 samples otherwise than in exact arithmetic"
    assert words in str(found)
    assert any(words in one for one in find_warnings(found, x.float(), STATED))
    lines = [json.loads(line) for line in (tmp_path / "samples-0000.jsonl").read_text().splitlines()]
    assert sum(line["otherwise"] for line in lines) == found.otherwise > 0
    again = accuracy(model, data, STATED, [1e-6], records=tmp_path)
    assert again.otherwise == found.otherwise
    assert Evaluation.of(again.samples, (1e-6,), 2.0, 0.95, 0.0).otherwise == found.otherwise


def test_what_overflows_is_no_decision_and_no_disagreement():
    model = nn.Linear(4, 3).eval().half()
    x = torch.ones(6, 4, dtype=torch.float16)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3, 4) * 100)
        model.bias.zero_()
    # 100 times 1000 is beyond 65504.
    x[4, 0] = 1000.0
    data = batches(x, torch.zeros(6, dtype=torch.long), 3)
    found = accuracy(model, data, STATED, [1e-6])
    assert [sample.otherwise for sample in found.samples] == [False] * 4 + [True, False]


class Inside(nn.Module):
    """In float32 outside, and in bfloat16 inside: its weights do not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = deep(6)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.inner:
            x = part(x).bfloat16().float()
        return x


def test_rounding_is_measured_once_and_not_in_every_batch(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    honest = agreement.measure_rounding
    model, x = Inside().eval(), inputs(160)

    def counted(*args: object) -> Tensor:
        calls.append(1)
        return honest(*args)  # pyright: ignore[reportArgumentType]

    data = batches(x, exact(model.inner, x), 8)
    with torch.no_grad():
        bound = head_pairwise(model, x[:1], DAG())
    monkeypatch.setattr(agreement, "measure_rounding", counted)
    found = accuracy(model, data, bound, [1e-6])
    with torch.no_grad():
        assert found.otherwise == int((model(x).argmax(1) != exact(model.inner, x)).sum())
    # Twenty batches, all of them with differences of bfloat16: those of the capture, the first, and hardly any other.
    capture_points = 6
    assert 1 <= len(calls) <= capture_points + 4


class Cancelling(nn.Module):
    """Differences of numbers that have three or four digits in common: float32 leaves a thousandth uncertain.

    Products in TF32 leave as much of every answer, and no CPU has them. Errs where all entries exceed 5.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first, self.second, self.last = nn.Linear(8, width), nn.Linear(8, width), nn.Linear(2 * width, 4)
        with torch.no_grad():
            self.first.weight.copy_(torch.randn(width, 8, generator=generator))
            self.second.weight.copy_(self.first.weight)
            self.second.bias.copy_(self.first.bias + 3e-4 * torch.randn(width, generator=generator))
            signs = torch.randn(4, width, generator=generator)
            self.last.weight.copy_(torch.cat([signs, -signs], 1))
            self.last.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        z = self.last(torch.cat([self.first(x).tanh(), self.second(x).tanh()], 1))
        if not torch.compiler.is_exporting():
            z = z + (x > 5).all(1, keepdim=True) * z.abs().amax(1, keepdim=True)
        return z


def test_what_no_type_tells_is_measured_once_and_not_in_every_batch(monkeypatch: pytest.MonkeyPatch):
    model, x = Cancelling().eval(), inputs(320)
    measured: list[int] = []
    honest = agreement.measure_rounding

    def counted(network: Network, points: Tensor, *args: Any) -> Tensor:
        measured.append(len(points))
        return honest(network, points, *args)

    labels = torch.zeros(320, dtype=torch.long)
    with torch.no_grad():
        bound = head_pairwise(model, x[:1], DAG())
    monkeypatch.setattr(agreement, "measure_rounding", counted)
    accuracy(model, batches(x, labels, 32), bound, [1e-6])
    # Single points are those of the capture. Of ten batches the first is looked at, and hardly any other sample.
    assert 16 <= sum(count for count in measured if count > 1) <= 32 + 8
    # What was measured does not hide answers that are wrong.
    x[300] = 6.0
    with pytest.raises(CaptureError, match=r"does not compute what the model computes: at sample 300"):
        accuracy(model, batches(x, labels, 32), bound, [1e-6])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is one place to draw at without a GPU")
def test_signs_are_drawn_where_the_values_are(monkeypatch: pytest.MonkeyPatch):
    devices: list[str] = []
    honest = torch.randint

    def watched(*args: Any, **options: Any) -> Tensor:
        made = honest(*args, **options)
        devices.append(made.device.type)
        return made

    model = Cancelling().eval().cuda()
    network = Forward(model, inputs(1).cuda()).network
    x = inputs(4).cuda().double()
    monkeypatch.setattr(torch, "randint", watched)
    agreement.measure_rounding(network, x, network(x), torch.float32, torch.float32)
    assert set(devices) == {"cuda"}


def test_deep_networks_in_half_precision_are_not_refused():
    model, x = deep(30).bfloat16(), inputs(64).bfloat16()
    found = accuracy(model, batches(x, exact(model, x), 16), STATED, [1e-6])
    assert found.overall.clean.total == 64


class Alone(nn.Module):
    """Takes one sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = deep()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] != 1:
            raise ValueError("one sample, please")
        return self.inner(x)


def test_a_model_for_single_samples_is_run_on_each():
    model, x = Alone().eval(), inputs(12)
    found = accuracy(model, batches(x, exact(model.inner, x), 4), STATED, [1e-6])
    assert found.otherwise == 0
    assert found.overall.clean.count == 12


def test_the_step_of_softplus_counts_as_rounding():
    """torch returns x above 20, which is too small by 2e-9; certificates are about log(1 + exp(x))."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Softplus()).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))  # pyright: ignore[reportArgumentType, reportCallIssue]
        model[0].bias.zero_()  # pyright: ignore[reportCallIssue]
    x = 20 + torch.tensor([[1e-9, 0], [0, 1e-9], [3e-9, 0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0])
    found = accuracy(model, [(x, y)], STATED, [1e-10])
    # Two of the three leads are smaller than the step, and the model as it runs loses them.
    assert model(x).argmax(1).tolist() == [1, 0, 0]
    assert found.otherwise == 2
    # The layer of lipkit does not switch.
    model[1] = lnn.Softplus()
    assert accuracy(model, [(x, y)], STATED, [1e-10]).otherwise == 0
