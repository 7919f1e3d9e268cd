"""Trainings in processes: training_program.py FOLDER PROCESSES [slowly | plainly] [profile]; and their recipes."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import ProfileSettings
from lipkit.data import Examples
from lipkit.losses import Progress
from support.programs.run import together


@dataclass(frozen=True)
class Blobs(Recipe):
    """Three Gaussian blobs in the plane; dropout and noise, so that random states matter."""

    epochs: int = 3
    batch: int = 16
    ema: float = 0.9
    stop_every: int = 0

    def sets(self) -> Sets:
        generator = torch.Generator().manual_seed(5)
        labels = torch.arange(300) % 3
        centers = 4 * torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])
        inputs = centers[labels] + 0.5 * torch.randn(300, 2, generator=generator)
        return Sets(*Examples(inputs, labels, ("a", "b", "c")).split(60, 0))

    def model(self) -> nn.Module:
        return nn.Sequential(lnn.Linear(2, 8), lnn.MaxMin(), nn.Dropout(0.1), lnn.Linear(8, 3))

    def augmented(self, inputs: Tensor) -> Tensor:
        return inputs + 0.1 * torch.randn_like(inputs)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        found = nn.functional.cross_entropy(model(inputs), labels)
        # Only recorded steps get dials, and this recipe records none.
        assert isinstance(progress, float)
        steps = round(progress * self.epochs * (240 // self.batch)) + 1
        if self.stop_every and steps % self.stop_every == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        half = len(list(model.parameters())) // 2
        parameters = list(model.parameters())
        return [
            torch.optim.AdamW(parameters[:half], lr=0.02),
            torch.optim.SGD(parameters[half:], lr=0.05, momentum=0.9),
        ]

    @property
    def goal(self) -> Goal:
        return Goal((0.1, 0.5))


@dataclass(frozen=True)
class Slow(Blobs):
    """The same with a pause in every step."""

    def augmented(self, inputs: Tensor) -> Tensor:
        time.sleep(0.05)
        return super().augmented(inputs)


@dataclass(frozen=True)
class OneOptimizer(Blobs):
    """The same with plain layers and one optimizer, which a profiler can follow."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)]


@dataclass(frozen=True)
class SlowOneOptimizer(OneOptimizer, Slow):
    """The same with a pause in every step."""


@dataclass(frozen=True)
class PlainSGD(OneOptimizer):
    """Nothing random beside the order of the data, so that a profiler hears the noise of batches alone."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).double()

    def sets(self) -> Sets:
        found = super().sets()
        parts = (Examples(part.inputs.double(), part.labels, part.classes) for part in (found.train, found.test))
        return Sets(*parts)

    def augmented(self, inputs: Tensor) -> Tensor:
        return inputs

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.05)]


def work(rank: int, folder: str, size: int, words: Sequence[str], port: int) -> None:
    failed = 0
    try:
        torch.set_num_threads(1)
        if size > 1:
            os.environ |= {
                "WORLD_SIZE": str(size), "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)
            }  # fmt: skip
        team = Team.join(torch.device("cpu"))
        slowly, asked = "slowly" in words, ProfileSettings(4) if "profile" in words else None
        recipe = (OneOptimizer() if asked else Blobs()) if not slowly else SlowOneOptimizer() if asked else Slow()
        recipe = PlainSGD() if "plainly" in words else recipe
        train(recipe, Path(folder), team, profile=asked)
        if team.leads:
            (Path(folder) / "done").touch()
        team.broadcast(0)
    except Exception:  # noqa: BLE001 - reported here, because the process does not end by itself
        failed = 1
        traceback.print_exc()
    sys.stderr.flush()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(failed)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    count = int(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    if count == 1:
        work(0, sys.argv[1], 1, sys.argv[3:], free)
    together(work, (sys.argv[1], count, sys.argv[3:], free), count)
