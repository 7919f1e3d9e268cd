"""Claim: a 1-Lipschitz network is expressive: an orthogonal MLP fits labels that were drawn at random, and with the HKR
loss most of the training set even with a certificate at 36/255.

    lipkit train recipes/random_labels.py --data FOLDER --out runs/random-tau
    lipkit train recipes/random_labels.py --data FOLDER --out runs/random-hkr --objective=hkr

Data: CIFAR-10 (or the IDX files of MNIST with --which=mnist), every label replaced by one drawn evenly from the ten, by
--label-seed. What is evaluated is the training set with these labels. Seeds: one. Hardware: one GPU; --count takes
fewer images.
Published (Béthune 2024, example 4.3, on CIFAR-100 with 1024-1024, so only the trend compares): training accuracy 99.9 %
(tau 256) and 99.8 % (HKR, alpha 256, margin 36/255), certified at 36/255 38.2 % and 91.0 %, at 72/255 21 % and 19 %.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import cifar10, mnist
from lipkit.losses import CosineSchedule, MulticlassHKR, Progress, Schedule, TauCrossEntropy


class Which(enum.Enum):
    """Which pictures."""

    CIFAR10 = "cifar10"
    MNIST = "mnist"


class Objective(enum.Enum):
    """Which loss."""

    TAU = "tau"
    HKR = "hkr"


@dataclass(frozen=True)
class RandomLabels(Recipe):
    """An orthogonal MLP with GroupSort2 on labels without any meaning."""

    epochs: int = 500
    batch: int = 1000
    which: Which = Which.CIFAR10
    count: int | None = None
    label_seed: int = 0
    objective: Objective = Objective.TAU
    tau: float = 256.0
    alpha: float = 256.0
    margin: float = 36 / 255
    width: int = 1024
    learning_rate: float = 1e-3
    eps: tuple[float, ...] = (36 / 255, 72 / 255)
    attack_steps: int = 20
    samples: int | None = None

    needs_data = True

    def sets(self) -> Sets:
        """The training images with random labels, twice."""
        assert self.data is not None, "a recipe that needs data is refused without"
        images = cifar10(self.data) if self.which is Which.CIFAR10 else mnist(self.data)
        images = images if self.count is None else images.at(range(min(self.count, len(images))))
        drawn = torch.randint(10, (len(images),), generator=torch.Generator().manual_seed(self.label_seed))
        redrawn = replace(images, labels=drawn)
        return Sets(redrawn, redrawn)

    def model(self) -> nn.Module:
        """Two hidden layers; rows of the head of length one."""
        size = {Which.CIFAR10: 3 * 32 * 32, Which.MNIST: 28 * 28}[self.which]
        hidden = (lnn.Linear(size, self.width), lnn.GroupSort(2), lnn.Linear(self.width, self.width), lnn.GroupSort(2))
        return nn.Sequential(nn.Flatten(), *hidden, lnn.Linear(self.width, 10, method=lnn.UnitRows()))

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy at an inverse temperature, or HKR."""
        if self.objective is Objective.TAU:
            return TauCrossEntropy(self.tau, divided=True)(model(inputs), labels)
        return MulticlassHKR(self.margin, self.alpha, scale=1 / self.alpha)(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Adam on the free numbers behind the weights."""
        return [torch.optim.Adam(model.parameters(), lr=self.learning_rate)]

    @property
    def rate(self) -> Schedule:
        """A cosine to 1 %."""
        return CosineSchedule(1.0, 0.01)

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Every layer proven as it is, the last one by pairs: for layers of norm one nothing is lost by the product."""
        return head_pairwise(model, example, DAG())

    @property
    def goal(self) -> Goal:
        """The two published radii, with an attack of 20 steps."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=self.attack_steps, low=0.0, high=1.0), samples=self.samples)

    def quick(self) -> "RandomLabels":
        """One epoch of a small network."""
        return replace(self, attack_steps=2, epochs=1, batch=500, width=16, samples=16)
