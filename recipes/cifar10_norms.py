"""Claim: a penalty on every norm above one holds the convolutions of a ResNet-18 at norm one while it trains, and costs
no accuracy; weight decay does neither.

    lipkit train recipes/cifar10_norms.py --data FOLDER --out runs/hinge --device cuda
    lipkit train recipes/cifar10_norms.py --data FOLDER --out runs/decay --device cuda --weight=0 --weight-decay=0.0005
    lipkit train recipes/cifar10_norms.py --data FOLDER --out runs/plain --device cuda --weight=0

Data: CIFAR-10, flips and crops. Seeds: one (give --seed for more). Hardware: one GPU. The journal's `constant` is the
largest norm of a convolution or of the last matrix, an upper bound. --every=4 computes the penalty at a quarter of the
steps, drawn at random, and four times as large.
Published (Delattre 2025, sections 4.2 and 7.1, 200 epochs, ten runs): accuracy 93.32 without, 93.30 with weight decay,
93.48 with the penalty (Gram iteration, weight 0.1), whose layers all end at norm one; 11.4 and 31.9 s an epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

import lipkit
from lipkit.bound import Bound
from lipkit.bounds import PairwiseDAG
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Precision, Recipe, Sets, single_module
from lipkit.data import cifar10, cropped, flipped
from lipkit.errors import ArgumentError
from lipkit.losses import Progress
from lipkit.regularizers import NormHinge, layers_of
from lipkit.regularizers.weights.training_norm import TrainingNorm


@final
class Block(nn.Module):
    """Two 3 x 3 convolutions beside the identity, or beside a 1 x 1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
        )
        changed = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.beside = nn.Sequential(*(changed if stride != 1 or before != after else ()))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum."""
        return (self.inner(x) + self.beside(x)).relu()


@final
class ResNet18(nn.Module):
    """The network for 32 x 32 pixels: no pooling at the start, four stages of two blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [channels * factor for factor in (1, 1, 2, 4, 8)]
        blocks = [
            Block(sizes[i] if first else sizes[i + 1], sizes[i + 1], 2 if first and i else 1)
            for i in range(4)
            for first in (True, False)
        ]
        start = (nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.layers = nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images with values in [0, 1]."""
        return self.layers(x)


@dataclass(frozen=True)
class Cifar10Norms(Recipe):
    """Cross-entropy, and the hinge of all norms at a target; normalisations are left alone."""

    epochs: int = 200
    batch: int = 256
    precision: Precision = Precision.BFLOAT16
    channels: int = 64
    weight: float = 0.1
    target: float = 1.0
    every: int = 1
    weight_decay: float = 0.0
    learning_rate: float = 0.1
    eps: tuple[float, ...] = (1 / 255, 36 / 255)
    attack_steps: int = 20
    samples: int | None = 1000

    needs_data = True
    watches = "largest norm of a layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ArgumentError(f"every is how many steps share one penalty, at least 1, got {self.every}.")

    def sets(self) -> Sets:
        """The published split."""
        assert self.data is not None, "a recipe that needs data is refused without"
        return Sets(cifar10(self.data), cifar10(self.data, train=False))

    def model(self) -> nn.Module:
        """The network as published, with batch normalisation."""
        return ResNet18(self.channels)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Flipped, and cut out of a frame of four zeros."""
        return cropped(flipped(inputs), 4)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy, and the hinge, in expectation at every step."""
        loss = nn.functional.cross_entropy(model(inputs), labels)
        # Drawn on the CPU, where the state of the generator is part of a checkpoint.
        if self.weight and float(torch.rand(())) * self.every < 1:
            penalty = NormHinge(self.target)(layers_of(single_module(model, ResNet18), inputs[:1]))
            loss = loss + self.weight * self.every * penalty.to(loss)
        return loss

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """SGD with momentum 0.9."""
        return [torch.optim.SGD(model.parameters(), self.learning_rate, 0.9, weight_decay=self.weight_decay)]

    def constant(self, model: nn.Module) -> float:
        """The largest norm of a layer."""
        example = torch.zeros(1, 3, 32, 32, device=next(model.parameters()).device)
        with torch.no_grad():
            found = TrainingNorm().many(
                [layer.operator() for layer in layers_of(single_module(model, ResNet18), example)]
            )
        return max(float(bound.value) for bound in found)

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Layer by layer, the last one by pairs."""
        return lipkit.pairwise(model, example, PairwiseDAG())

    @property
    def goal(self) -> Goal:
        """Accuracy and norms are the figures; the radii show what they are worth."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=self.attack_steps, low=0.0, high=1.0), samples=self.samples)

    def quick(self) -> "Cifar10Norms":
        """One epoch of a small network in float32."""
        small = replace(self, precision=Precision.FLOAT32, epochs=1, batch=500, channels=4, every=2)
        return replace(small, attack_steps=2, samples=16)
