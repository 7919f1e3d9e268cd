"""Claim: a wide residual network, trained on noisy CIFAR-10 for less than eight minutes on one GPU with a penalty where
noisy copies of an image disagree, certifies more by randomized smoothing than the published ResNet-110.

    lipkit train recipes/cifar10_smoothing.py --data FOLDER --out runs/noisy --device cuda
    python benchmarks/smoothing_cifar10.py --recipe recipes/cifar10_smoothing.py --run runs/noisy --data FOLDER
        --device cuda --out runs/noisy-table                                                       (on one line)
    lipkit train recipes/cifar10_smoothing.py --data FOLDER --out runs/noisy-5 --device cuda --sigma=0.5 --weight=10

The network has no Lipschitz constant worth its name, so the training ends with its weights and certifies nothing. The
second command does, by every method; or this one, with a report, for the default width and depth (on one line):

    lipkit smooth recipes/cifar10_smoothing.py:network --weights runs/noisy/model.safetensors --data cifar10:FOLDER
        --sigma 0.25 --stride 20 --precision bfloat16 --device cuda --out runs/noisy-smooth

Data: CIFAR-10, all of the training set; settings are those of Jeong and Shin 2020, nothing was chosen on the test set.
Seeds: one. Hardware: one H200, bfloat16, torch.compile.
Published, for orientation (Cohen, Rosenfeld, Kolter 2019, ResNet-110, sigma 0.25, 500 test images): certified .748 at
0, .600 at 0.25, .428 at 0.5, .266 at 0.75, average radius .429. Ours stand in docs/results.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.certify import smoothing as rs
from lipkit.cli.training import Precision, Recipe, Sets
from lipkit.data import cifar10, cropped, flipped
from lipkit.errors import ArgumentError
from lipkit.losses import Consistency, Progress, Schedule, WarmCosineSchedule

# Mean and spread of the channels over the training set.
MEAN, SPREAD = (0.4914, 0.4822, 0.4465), (0.25, 0.25, 0.25)


@final
class Block(nn.Module):
    """Normalisation, ReLU and convolution, twice, beside the identity or a convolution that changes the shape."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        same = before == width and stride == 1
        self.beside = None if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images of the new shape."""
        active = functional.relu(self.first_norm(x))
        short = x if self.beside is None else self.beside(active)
        return short + self.second(functional.relu(self.second_norm(self.first(active))))


@final
class WideResNet(nn.Module):
    """Three stages of `blocks` residual blocks, with `width`, 2 `width` and 4 `width` channels.

    Reference: Zagoruyko, Komodakis 2016; width 64 with 2 blocks is their WRN-16-4.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.scale = lnn.Normalize(MEAN, SPREAD)
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        sizes = [(width << stage, 1 if place or not stage else 2) for stage in range(3) for place in range(blocks)]
        before = [16, *(size for size, _ in sizes)]
        self.blocks = nn.Sequential(
            *(Block(last, size, stride) for last, (size, stride) in zip(before, sizes, strict=False))
        )
        self.norm = nn.BatchNorm2d(4 * width)
        self.head = nn.Linear(4 * width, 10)
        # The layout that tensor cores are fast in.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - torch's types forget it

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images with values around [0, 1]."""
        images = self.scale(x).contiguous(memory_format=torch.channels_last)
        return self.head(functional.relu(self.norm(self.blocks(self.stem(images)))).mean((2, 3)))


@dataclass(frozen=True)
class Cifar10Smoothing(Recipe):
    """WideResNet on CIFAR-10 with Gaussian noise, two noisy copies of each image in a step, and consistency.

    Args:
        sigma: Standard deviation of the noise, for pixels in [0, 1].
        copies: Noisy copies of each image in a step.
        weight: Factor of the divergence of the copies.
        entropy: Factor of the entropy of their mean.
    """

    epochs: int = 90
    batch: int = 512
    precision: Precision = Precision.BFLOAT16
    compile: bool = True
    sigma: float = 0.25
    copies: int = 2
    weight: float = 20.0
    entropy: float = 0.5
    width: int = 96
    blocks: int = 2
    learning_rate: float = 0.2
    decay: float = 5e-4
    warm: float = 0.05
    count: int | None = None

    needs_data = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph:
            raise ArgumentError("The momentum steps of this recipe cannot be recorded; leave --graph off.")

    def sets(self) -> Sets:
        """Both published sets, or the first `count` images of the training set."""
        assert self.data is not None, "a recipe that needs data is refused without"
        train = cifar10(self.data)
        train = train if self.count is None else train.at(range(min(self.count, len(train))))
        return Sets(train, cifar10(self.data, train=False))

    def model(self) -> nn.Module:
        """The network, newly drawn."""
        return WideResNet(self.width, self.blocks)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Flipped, and cropped out of a frame of four zeros."""
        return cropped(flipped(inputs), 4)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy of noisy copies, and how much they disagree; noise comes from torch's generator."""
        del progress
        logits = rs.Noisy(model, self.sigma, self.copies).copies(inputs)
        return Consistency(self.weight, self.entropy)(logits, labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Nesterov momentum, with weight decay on everything."""
        return [torch.optim.SGD(model.parameters(), self.learning_rate, 0.9, weight_decay=self.decay, nesterov=True)]

    @property
    def rate(self) -> Schedule:
        """Up over the first steps, then a cosine."""
        return WarmCosineSchedule(self.warm)

    @property
    def goal(self) -> None:
        """Nothing is certified by the training itself."""
        return

    def quick(self) -> "Cifar10Smoothing":
        """One epoch of a small network in float32, not compiled."""
        small = replace(self, compile=False, precision=Precision.FLOAT32, width=8, blocks=1)
        return replace(small, epochs=1, batch=500, learning_rate=0.05)


def network() -> nn.Module:
    """The network of the default settings, without training: for `lipkit smooth`."""
    # A recipe without a folder of data is refused; nothing is read from it here.
    return Cifar10Smoothing(data=Path()).model().requires_grad_(False)
