"""A recipe of a private training, for programs and tests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.cli.training import Accounting, Goal, PrivateRecipe, Sets, Tuning
from lipkit.data import Examples
from lipkit.privacy import Inputs


@dataclass(frozen=True)
class PrivateBlobs(PrivateRecipe):
    """Three Gaussian blobs in the plane, learnt privately; `pause` seconds are waited in every step."""

    batch: int = 120
    epsilon: float = 8.0
    steps: int = 40
    accountant: Accounting = Accounting.RDP
    learning_rate: float = 0.2
    pause: float = 0.0

    @property
    def records(self) -> int:
        return 240

    @property
    def tuning(self) -> Tuning:
        return Tuning.PUBLIC

    def sets(self) -> Sets:
        generator = torch.Generator().manual_seed(5)
        labels = torch.arange(300) % 3
        centers = 4 * torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])
        inputs = centers[labels] + 0.5 * torch.randn(300, 2, generator=generator)
        return Sets(*Examples(inputs, labels, ("a", "b", "c")).split(60, 0))

    def model(self) -> nn.Module:
        return nn.Sequential(lnn.Linear(2, 8), lnn.MaxMin(), lnn.Linear(8, 3))

    def inputs(self) -> Inputs:
        return Inputs((2,), 5.0)

    def record_loss(self) -> nn.Module:
        return nn.CrossEntropyLoss()

    def after(self, model: nn.Module) -> None:
        del model
        time.sleep(self.pause)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)]

    @property
    def goal(self) -> Goal:
        return Goal((0.1, 0.5))

    def quick(self) -> "PrivateBlobs":
        return self
