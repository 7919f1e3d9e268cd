"""Claim: on two moons the inverse temperature of the loss moves a 1-Lipschitz network between accuracy and robustness:
a large tau gives accuracy at small radii, a small one the largest mean radius for less accuracy.

    lipkit train recipes/moons.py --out runs/moons-10 --tau=10      (and --tau=5, --tau=0.5)

Data: 5000 points for training, 1000 others for testing, noise 0.05, made from seeds. Seeds: one. Hardware: one CPU
core, about a minute.
Published (Béthune 2024, figure 4.3, setting of the companion code): three networks at tau 10, 5 and 0.5, from the most
accurate for radii up to 0.3 to the largest mean radius; a picture, no numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import moons
from lipkit.losses import Progress, TauCrossEntropy


@dataclass(frozen=True)
class Moons(Recipe):
    """Orthogonal layers and GroupSort2 on the plane, binary cross-entropy at an inverse temperature tau."""

    epochs: int = 40
    batch: int = 100
    tau: float = 10.0
    widths: tuple[int, ...] = (256, 128, 64)
    learning_rate: float = 1e-3
    count: int = 5000
    held: int = 1000
    noise: float = 0.05
    eps: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5)
    attack_steps: int = 40

    def sets(self) -> Sets:
        """Points to train on, and others to test, from two seeds."""
        return Sets(moons(self.count, seed=0, noise=self.noise), moons(self.held, seed=1, noise=self.noise))

    def model(self) -> nn.Module:
        """f of constant 1 behind (f/2, -f/2): the radius of a point is |f|, and cross-entropy is that of tau f."""
        pairs = pairwise((2, *self.widths))
        hidden = [
            part for cols, rows in pairs for part in (lnn.Linear(cols, rows, method=lnn.Cayley()), lnn.GroupSort(2))
        ]
        halves = nn.Linear(1, 2, bias=False)
        halves.weight = nn.Parameter(torch.tensor([[0.5], [-0.5]]), requires_grad=False)
        return nn.Sequential(*hidden, lnn.Linear(self.widths[-1], 1), halves)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """-log sigmoid(tau y f)."""
        return TauCrossEntropy(self.tau)(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Adam on the free numbers behind the weights."""
        return [torch.optim.Adam(model.parameters(), lr=self.learning_rate)]

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Every layer proven as it is, the last one by pairs: for layers of norm one nothing is lost by the product."""
        return head_pairwise(model, example, DAG())

    @property
    def goal(self) -> Goal:
        """Radii up to the distance of the moons, with an attack of 40 steps and two starts."""
        return Goal(self.eps, attack=PGD(eps=0.5, steps=self.attack_steps, restarts=2))

    def quick(self) -> "Moons":
        """One epoch of a small network."""
        return replace(self, attack_steps=2, epochs=1, widths=(16, 16), count=1000, held=40, eps=(0.1, 0.2))
