"""The recipe of the demonstration: digits with a certificate. `recipes/digits.py` says what it claims."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import digits
from lipkit.losses import TauCrossEntropy


@dataclass(frozen=True)
class Digits(Recipe):
    """Orthogonal layers and MaxMin, temperature cross-entropy: accuracy with a certificate on 8 x 8 digits."""

    epochs: int = 40
    batch: int = 64
    width: int = 128
    depth: int = 3
    temperature: float = 4.0
    rate_of_learning: float = 3e-3
    held: int = 397
    eps: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)

    def sets(self) -> Sets:
        """1400 images to train on, 397 to test, drawn once and for all."""
        return Sets(*digits().split(self.held, seed=0))

    def model(self) -> nn.Module:
        """Dense layers of norm one; the rows of the head have length one."""
        sizes = [64, *[self.width] * self.depth]
        hidden = [part for cols, rows in pairwise(sizes) for part in (lnn.Linear(cols, rows), lnn.MaxMin())]
        return nn.Sequential(nn.Flatten(), *hidden, lnn.Linear(self.width, 10, method=lnn.UnitRows()))

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Cross-entropy at an inverse temperature: larger for accuracy, smaller for radii."""
        return TauCrossEntropy(self.temperature)(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Adam on the free numbers behind the weights."""
        return [torch.optim.Adam(model.parameters(), lr=self.rate_of_learning)]

    @property
    def goal(self) -> Goal:
        """Radii up to 1, with an attack of 40 steps and two starts."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=40, restarts=2, low=0.0, high=1.0))

    def quick(self) -> "Digits":
        """Two epochs of a small network."""
        return replace(self, epochs=2, width=32, depth=1, eps=(0.25, 0.5))
