"""Steps that are recorded once and replayed: the same training as step by step, and clear refusals."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipkit.cli.training import Goal, Recipe, Sets, checkpoint
from lipkit.cli.training.graph import RecordedStep
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import ArgumentError, InterruptedRun, NonFiniteError
from lipkit.losses import EMMA, LinearSchedule, Progress, RunningLipLT, Schedule, WarmCosineSchedule
from lipkit.optim import SAM, StiefelMuon

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Followed(nn.Module):
    """A network and its running constants."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.constants = RunningLipLT(layers, torch.zeros(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@dataclass(frozen=True)
class Plane(Recipe):
    """Three blobs in the plane, EMMA at a growing radius, a matrix that moves at every third step; nothing random.

    With `follows` the constants of the loss are those of `RunningLipLT`, which changes its buffers in every step.
    """

    epochs: int = 4
    batch: int = 40
    ema: float = 0.9
    follows: bool = False
    waits: bool = False
    spoils: bool = False

    def sets(self) -> Sets:
        generator = torch.Generator().manual_seed(5)
        labels = torch.arange(300) % 3
        centers = 4 * torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])
        inputs = centers[labels] + 0.5 * torch.randn(300, 2, generator=generator)
        return Sets(*Examples(inputs, labels, ("a", "b", "c")).split(60, 0))

    def model(self) -> nn.Module:
        first, second = nn.Linear(2, 8), nn.Linear(8, 8)
        nn.init.orthogonal_(first.weight)
        nn.init.orthogonal_(second.weight)
        layers = nn.Sequential(first, nn.Tanh(), second, nn.Linear(8, 3))
        return Followed(layers) if self.follows else layers

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        radius = LinearSchedule(0.1, 0.5, until=0.5)(progress)
        logits = model(inputs)
        if self.waits:
            float(logits.detach().sum())
        if self.spoils:
            logits = logits / (LinearSchedule(1.0, -1.0)(progress) > 0)
        fixed = torch.full((3, 3), 1.5, device=inputs.device)
        return EMMA(radius)(logits, labels, model.constants() if isinstance(model, Followed) else fixed)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        net = list(model.parameters())
        tied: list[dict[str, object]] = [{"params": [net[0]]}, {"params": [net[2]], "every": 3}]
        return [StiefelMuon(tied, lr=0.01), torch.optim.Adam([net[1], *net[3:]], lr=0.01)]

    @property
    def rate(self) -> Schedule:
        return WarmCosineSchedule(0.2)

    @property
    def goal(self) -> Goal:
        return Goal((0.1,))


def gpu() -> Team:
    return Team(torch.device("cuda"))


def weights(folder: Path) -> dict[str, Tensor]:
    state = checkpoint.load(folder / "checkpoint.safetensors")
    return {f"{part} {name}": value for part in ("model", "average") for name, value in state[part].items()}


@needs_cuda
@pytest.mark.parametrize("follows", [False, True])
def test_a_recorded_run_is_the_run_step_by_step(tmp_path: Path, follows: bool) -> None:
    ends = []
    for graph in (False, True):
        train(Plane(graph=graph, follows=follows), tmp_path / str(graph), gpu())
        ends.append(weights(tmp_path / str(graph)))
    for name, value in ends[0].items():
        # 24 steps of 0.01: rounding of float32 sums, and directions in bfloat16 that it may tip over.
        torch.testing.assert_close(ends[1][name], value, rtol=2e-3, atol=2e-3, msg=name)


@needs_cuda
def test_a_recorded_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([False] * 13 + [True])

    class Stopping:
        def __enter__(self):
            return lambda: next(steps)

        def __exit__(self, *_: object):
            return None

    with monkeypatch.context() as patch:
        patch.setattr("lipkit.cli.training.loop.interrupts", Stopping)
        with pytest.raises(InterruptedRun):
            train(Plane(graph=True), tmp_path / "stopped", gpu())
    train(Plane(graph=True), tmp_path / "stopped", gpu())
    train(Plane(graph=True), tmp_path / "whole", gpu())
    whole = weights(tmp_path / "whole")
    for name, value in weights(tmp_path / "stopped").items():
        torch.testing.assert_close(value, whole[name], rtol=2e-3, atol=2e-3, msg=name)


@needs_cuda
def test_what_waits_for_the_device_is_refused_and_losses_are_watched(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="recorded step is not finite"):
        train(Plane(graph=True, spoils=True), tmp_path / "spoils", gpu())
    with pytest.raises(ArgumentError, match="cannot be recorded"):
        train(Plane(graph=True, waits=True), tmp_path / "waits", gpu())


def test_a_graph_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="one CUDA device, got 1 processes on cpu"):
        train(Plane(graph=True), tmp_path, Team(torch.device("cpu")))


def test_optimizers_that_cannot_be_recorded_are_named() -> None:
    weight = nn.Parameter(torch.ones(2))
    for optimizer in (torch.optim.SGD([weight], 0.1), SAM(torch.optim.Adam([weight]))):
        with pytest.raises(ArgumentError, match=f"{type(optimizer).__name__} cannot be recorded"):
            RecordedStep(lambda *_: weight.sum(), [optimizer], Team(torch.device("cuda")))
