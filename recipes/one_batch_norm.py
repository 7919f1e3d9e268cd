"""Claim: with one batch normalisation before the last layer instead of one after every convolution, and a penalty on
norms above one, the product of the layers' constants stays small instead of growing without bound.

    lipkit train recipes/one_batch_norm.py --data FOLDER --out runs/one
    lipkit train recipes/one_batch_norm.py --data FOLDER --out runs/everywhere --norms=everywhere

Data: CIFAR-10. Seeds: one. Hardware: one GPU. The journal's `constant` is the product bound in evaluation mode.
Published (Delattre 2025, section 4.4, ResNet-18): the product settles at about 1e3 with one normalisation against 1e9
with all, for 3 points of accuracy. The network here is smaller, six convolutions, so only the trend compares.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import PairwiseDAG
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import cifar10
from lipkit.losses import Progress
from lipkit.regularizers import BoundPenalty, NormHinge, layers_of


class Norms(enum.Enum):
    """Where batches are normalised; `bounded` is the layer of constant one."""

    EVERYWHERE = "everywhere"
    ONE = "one"
    ONE_BOUNDED = "one-bounded"


@dataclass(frozen=True)
class OneBatchNorm(Recipe):
    """Six convolutions with ReLU and one dense layer; norms above the target are penalised."""

    epochs: int = 30
    batch: int = 256
    norms: Norms = Norms.ONE
    channels: int = 32
    weight: float = 0.1
    target: float = 1.0
    learning_rate: float = 0.1
    eps: tuple[float, ...] = (1 / 255, 36 / 255)
    attack_steps: int = 20
    samples: int | None = None

    needs_data = True

    def sets(self) -> Sets:
        """The published split."""
        assert self.data is not None, "a recipe that needs data is refused without"
        return Sets(cifar10(self.data), cifar10(self.data, train=False))

    def model(self) -> nn.Module:
        """3 x 3 convolutions on 32 x 32, 16 x 16 and 8 x 8 pixels, the mean over pixels, a dense layer."""
        c = self.channels
        sizes = ((3, c, 1), (c, c, 1), (c, 2 * c, 2), (2 * c, 2 * c, 1), (2 * c, 4 * c, 2), (4 * c, 4 * c, 1))
        hidden = [
            part
            for cols, rows, stride in sizes
            for part in (nn.Conv2d(cols, rows, 3, stride, 1), nn.BatchNorm2d(rows), nn.ReLU())
        ]
        model = nn.Sequential(*hidden, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, 10))
        if self.norms is Norms.EVERYWHERE:
            return model
        return lnn.one_batch_norm(model, bounded=self.norms is Norms.ONE_BOUNDED)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy, and the hinge of all norms at the target; normalisations are left alone."""
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if self.weight:
            net = next(module for module in model.modules() if type(module) is nn.Sequential)
            loss = loss + self.weight * NormHinge(self.target)(layers_of(net, inputs[:1])).to(loss)
        return loss

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """SGD with momentum 0.9."""
        return [torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)]

    def constant(self, model: nn.Module) -> float:
        """The product of the constants of all layers, normalisations included."""
        example = torch.zeros(1, 3, 32, 32, device=next(model.parameters()).device)
        return float(BoundPenalty().bound(model, example).value.detach())

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Layer by layer, the last one by pairs."""
        return lipkit.pairwise(model, example, PairwiseDAG())

    @property
    def goal(self) -> Goal:
        """The product and the accuracy are the figures; the radii show what they are worth."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=self.attack_steps, low=0.0, high=1.0), samples=self.samples)

    def quick(self) -> "OneBatchNorm":
        """One epoch of a small network."""
        return replace(self, epochs=1, batch=500, channels=4, attack_steps=2, samples=16)
