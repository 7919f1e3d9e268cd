"""Claim: a 1-Lipschitz network can follow a boundary as jagged as one likes: it regresses the signed distance to the
ring between two Koch snowflakes, and |f| is then a certificate that is as large as the true distance allows.

    lipkit train recipes/koch.py --out runs/koch

Data: points of the square [-200, 200]^2, made from seeds; the distance is computed. Seeds: one. Hardware: one CPU core,
about five minutes. The number to watch is the mean absolute error of f, in units of the square.
Published (Béthune 2024, example 4.2): a 128 x 5 network of that kind with mean squared error, stopped once the mean
absolute error is below 1. Here: 128 x 8, orthonormal weights near the identity at the start, moved by Muon on the
Stiefel manifold, the absolute error as the loss, and 400,000 points, each seen a few times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import Outline, snowflake_ring
from lipkit.losses import Progress, Schedule, WarmCosineSchedule
from lipkit.optim import StiefelMuon, split_orthonormal


@dataclass(frozen=True)
class Koch(Recipe):
    """Orthonormal layers and MaxMin, regression of a signed distance, positive in the ring."""

    epochs: int = 8
    batch: int = 512
    width: int = 128
    depth: int = 8
    iterations: int = 4
    count: int = 400_000
    held: int = 2000
    learning_rate: float = 5e-3
    warm: float = 0.03
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
        first = nn.Linear(2, self.width)
        nn.init.orthogonal_(first.weight)
        parts: list[nn.Module] = [first, lnn.MaxMin(lnn.ChannelPairing.HALVES)]
        for _ in range(self.depth - 1):
            layer = nn.Linear(self.width, self.width)
            layer.weight = nn.Parameter(lnn.near_identity(self.width))
            nn.init.zeros_(layer.bias)
            parts += [layer, lnn.MaxMin(lnn.ChannelPairing.HALVES)]
        last = nn.Linear(self.width, 1)
        nn.init.orthogonal_(last.weight)
        halves = nn.Linear(1, 2, bias=False)
        halves.weight = nn.Parameter(torch.tensor([[-100.0], [100.0]]), requires_grad=False)
        return nn.Sequential(lnn.Scale(1 / 200), *parts, last, halves)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Mean absolute error, in units of the square: its gradients do not fade where the network is nearly right."""
        return nn.functional.l1_loss(score(model(inputs)), self.distance(inputs))

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Muon on the orthonormal weights, Adam on the biases."""
        tied, others = split_orthonormal(model)
        free = [parameter for parameter in others if parameter.requires_grad]
        return [StiefelMuon(tied, lr=self.learning_rate), torch.optim.Adam(free, lr=self.learning_rate)]

    @property
    def rate(self) -> Schedule:
        """Up over the first steps, then a cosine."""
        return WarmCosineSchedule(self.warm)

    def settled(self, model: nn.Module) -> None:
        """Steps leave weights orthonormal up to their fourth power: pull them onto norm one."""
        lnn.orthonormal_([weight for weight in model.parameters() if weight.ndim == 2 and weight.requires_grad])

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
            self,
            attack_steps=2,
            epochs=1,
            batch=256,
            width=16,
            depth=2,
            iterations=2,
            count=2000,
            held=40,
            eps=(1.0, 5.0),
        )


def score(logits: Tensor) -> Tensor:
    """f from (-f/2, f/2)."""
    return logits[:, 1] - logits[:, 0]
