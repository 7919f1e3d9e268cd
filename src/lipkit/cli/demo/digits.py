"""Two classifiers of handwritten digits: an ordinary one, trained in a second, and the recipe of a certified one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import digits
from lipkit.losses import Progress, TauCrossEntropy

# Images that are kept from training, and what makes the training good enough in a second.
_TEST, _EPOCHS, _BATCH, _RATE, _DECAY = 297, 30, 50, 5e-3, 0.3


@final
@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network, 64 - 32 - 32 - 10 with ReLU, and the test images it has not seen.

    Pixels lie in [0, 1], less the mean image, which changes no distance.
    """

    model: nn.Sequential
    images: Float[Tensor, "images 64"]
    labels: Int[Tensor, " images"]

    @property
    def accuracy(self) -> float:
        """The part of the test images that the model gets right."""
        with torch.no_grad():
            return float((self.model(self.images).argmax(1) == self.labels).double().mean())


def train_classifier(seed: int) -> Classifier:
    """The classifier of scikit-learn's 1797 images of 8 x 8 pixels; `seed` draws weights, batches and test images."""
    every = digits()
    images, labels = every.inputs.flatten(1), every.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        test, train = order[:_TEST], order[_TEST:]
        images = images - images[train].mean(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
        step = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
        for _ in range(_EPOCHS):
            for batch in train[torch.randperm(len(train))].split(_BATCH):
                step.zero_grad()
                functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                step.step()
    return Classifier(model.eval(), images[test], labels[test])


@dataclass(frozen=True)
class Digits(Recipe):
    """Orthogonal layers and MaxMin, temperature cross-entropy: accuracy with a certificate on 8 x 8 digits.

    It is part of the package because `lipkit demo` runs it; recipes/digits.py gives it to `lipkit train`.
    """

    epochs: int = 40
    batch: int = 64
    width: int = 128
    depth: int = 3
    temperature: float = 4.0
    learning_rate: float = 3e-3
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

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy at an inverse temperature: larger for accuracy, smaller for radii."""
        return TauCrossEntropy(self.temperature)(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Adam on the free numbers behind the weights."""
        return [torch.optim.Adam(model.parameters(), lr=self.learning_rate)]

    @property
    def goal(self) -> Goal:
        """Radii up to 1, with an attack of 40 steps and two starts."""
        return Goal(self.eps, attack=PGD(eps=1.0, steps=40, restarts=2, low=0.0, high=1.0))

    def quick(self) -> "Digits":
        """Two epochs of a small network."""
        return replace(self, epochs=2, width=32, depth=1, eps=(0.25, 0.5))
