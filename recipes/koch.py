"""Claim: a 1-Lipschitz network can follow a boundary as jagged as one likes: it regresses the signed distance to the
ring between two Koch snowflakes, and |f| is then a certificate that is as large as the true distance allows.

    lipkit train recipes/koch.py --out runs/koch

Data: points of the square [-200, 200]^2, made from seeds; the distance is computed. Seeds: one. Hardware: one CPU core,
about ten minutes. The number to watch is the mean absolute error of f, in units of the square.
Published (Béthune 2024, example 4.2): a 128 x 5 network of that kind with mean squared error, stopped once the mean
absolute error is below 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import Outline, snowflake_ring
from lipkit.losses import Progress


@dataclass(frozen=True)
class Koch(Recipe):
    """Orthogonal layers and a full sort, regression of a signed distance, positive in the ring."""

    epochs: int = 200
    batch: int = 256
    width: int = 128
    depth: int = 5
    iterations: int = 4
    count: int = 20_000
    held: int = 2000
    learning_rate: float = 1e-2
    eps: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0)
    attack_steps: int = 40

    watches = "mean absolute error of the distance"

    @cached_property
    def ring(self) -> Outline:
        """The region between the two snowflakes."""
        return snowflake_ring(iterations=self.iterations)

    @cached_property
    def watched(self) -> tuple[Tensor, Tensor]:
        """Points to watch the error on, and their distances."""
        points = self.ring.draw(self.held, 200.0, seed=2).inputs
        return points, self.distance(points)

    def distance(self, points: Tensor) -> Tensor:
        """What f is to be."""
        return self.ring.signed_distance(points.double().cpu()).to(points)

    def sets(self) -> Sets:
        """Points drawn evenly from the square, from two seeds; class 1 is the ring."""
        return Sets(self.ring.draw(self.count, 200.0, seed=0), self.ring.draw(self.held, 200.0, seed=1))

    def model(self) -> nn.Module:
        """f(x) = 200 g(x/200) with g of constant 1, behind (-f/2, f/2): the radius of a point is |f|."""
        sizes = [2, *[self.width] * self.depth]
        hidden = [
            part
            for cols, rows in pairwise(sizes)
            for part in (lnn.Linear(cols, rows, method=lnn.Cayley()), lnn.FullSort())
        ]
        halves = nn.Linear(1, 2, bias=False)
        halves.weight = nn.Parameter(torch.tensor([[-100.0], [100.0]]), requires_grad=False)
        return nn.Sequential(lnn.Scale(1 / 200), *hidden, lnn.Linear(self.width, 1), halves)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Mean squared error, in units of the square."""
        return nn.functional.mse_loss(score(model(inputs)), self.distance(inputs))

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Adam on the free numbers behind the weights."""
        return [torch.optim.Adam(model.parameters(), lr=self.learning_rate)]

    def constant(self, model: nn.Module) -> float:
        """The mean absolute error on points that are not trained on."""
        points, distances = self.watched
        place = next(model.parameters())
        with torch.no_grad():
            return float((score(model(points.to(place))).cpu() - distances).abs().mean())

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Every layer proven as it is, the last one by pairs: for layers of norm one nothing is lost by the product."""
        return head_pairwise(model, example, DAG())

    @property
    def goal(self) -> Goal:
        """Radii in units of the square, with an attack of 40 steps and two starts."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=self.attack_steps, restarts=2))

    def quick(self) -> "Koch":
        """One epoch of a small network."""
        return replace(
            self, attack_steps=2, epochs=1, width=16, depth=2, iterations=2, count=2000, held=40, eps=(1.0, 5.0)
        )


def score(logits: Tensor) -> Tensor:
    """f from (-f/2, f/2)."""
    return logits[:, 1] - logits[:, 0]
