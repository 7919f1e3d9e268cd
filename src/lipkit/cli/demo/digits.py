"""A small classifier of handwritten digits, trained in a second."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lipkit.data import digits

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


def trained(seed: int) -> Classifier:
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
