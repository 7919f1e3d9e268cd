"""Claim: orthogonal mixing of channels, moves by one pixel and MaxMin, trained by Muon on the Stiefel manifold with the
EMMA loss, certify most of CIFAR-10 at 36/255 after ten minutes on one GPU.

    lipkit train recipes/cifar10_shift.py --data FOLDER --out runs/shift --device cuda            (5,000 held out)
    lipkit train recipes/cifar10_shift.py --data FOLDER --out runs/shift-0 --device cuda --held=0    (the test set)

Data: CIFAR-10; settings are chosen on 5,000 training images that are held out, --held=0 trains on all and evaluates the
test set. Seeds: three for a figure, --seed=0, 1, 2. Hardware: one H200, bfloat16, torch.compile, one CUDA graph a step.
Radii are in units of 36/255: the target rises to `target` over the first half and moves to `final` over the second.
Published, for orientation (Layers Compared, one A100, 24 hours, SOC-M): clean 76.9, certified 66.3 at 36/255, 53.4 at
72/255, 40.0 at 108/255. Ours stand in docs/results.md.

The weights that a run leaves give its figures again without training (the first two commands, on one line each), and
a certificate of the whole map that can be checked against them (the last two):

    lipkit certify recipes/cifar10_shift.py:network --weights runs/shift-0/model.safetensors --data cifar10:FOLDER
        --eps 36/255,72/255,108/255,1 --method dag --device cuda
    lipkit attack (the same) --steps 40 --box 0,1
    lipkit bound recipes/cifar10_shift.py:network --weights runs/shift-0/model.safetensors --shape 3,32,32 --method dag
        --json certificate.json
    lipkit verify certificate.json recipes/cifar10_shift.py:network --weights runs/shift-0/model.safetensors

Trained on noisy images it is the Lipschitz base of a smoothed classifier, whose radii use its constant as well
(--sigma is the standard deviation of the noise; a smaller target leaves more to the smoothing):

    lipkit train recipes/cifar10_shift.py --data FOLDER --out runs/shift-noisy --device cuda --held=0 --sigma=0.25
        --target=1 --final=1 --epochs=250 --attack_steps=0                                       (on one line)
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Precision, Recipe, Sets, Teacher, single_module
from lipkit.data import Examples, cifar10, cropped, cut_and_mixed, flipped, turned_and_scaled
from lipkit.errors import ArgumentError
from lipkit.losses import (
    EMMA,
    LinearSchedule,
    LogitAnnealing,
    PiecewiseSchedule,
    Progress,
    Schedule,
    WarmCosineSchedule,
)
from lipkit.optim import StiefelMuon, split_orthonormal

# The mean of each channel over the training set.
MEAN = (0.4914, 0.4822, 0.4465)
# The unit of radii: the customary one.
UNIT = 36 / 255
# Matrices with a side from here on move every few steps: their update does not depend on the batch and is dear.
LARGE = 2048


class Objective(enum.Enum):
    """What is asked of the margins: EMMA, or logit annealing of the radii themselves, with hard labels."""

    EMMA = "emma"
    ANNEALING = "annealing"


@final
class ShiftNet(nn.Module):
    """A free convolution, isometries up to the last layer, and a free head: K = 4 sigma(stem) ||w_a - w_b||.

    With `mirrored` an evaluation takes the mean over an image and its mirror image: the same constants, twice the work.
    `direction` follows the input that the stem enlarges most, by one step of power iteration for each step of training.
    """

    direction: Tensor

    def __init__(
        self,
        channels: Sequence[int],
        depth: Sequence[int],
        neck: int,
        width: int,
        dense: int,
        pool: int,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.mirrored = mirrored
        self.scale = lnn.Normalize(MEAN, [0.25] * 3)
        self.stem = nn.Conv2d(3, channels[0], 6, 2, 2)
        nn.init.orthogonal_(self.stem.weight)
        trunk: list[nn.Module] = []
        for stage, (wide, long) in enumerate(zip(channels, depth, strict=True)):
            if stage:
                trunk += [nn.PixelUnshuffle(2), *_projected(4 * channels[stage - 1], wide)]
            trunk += [lnn.ShiftBlock(wide, method=None) for _ in range(long)]
        self.trunk = nn.Sequential(*trunk)
        last = 16 >> len(channels) - 1
        flat = nn.Linear(pool**2 * neck, width)
        nn.init.orthogonal_(flat.weight)
        patches = [nn.PixelUnshuffle(last // pool), *_projected((last // pool) ** 2 * channels[-1], neck)]
        self.neck = nn.Sequential(*patches, nn.Flatten(), flat, _max_min())
        self.dense = nn.Sequential(*(part for _ in range(dense) for part in (_square(width), _max_min())))
        self.head = nn.Linear(width, 10)
        drawn = torch.randn(1, 3, 32, 32)
        self.register_buffer("direction", drawn / torch.linalg.vector_norm(drawn))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images with values in [0, 1]."""
        if self.training or not self.mirrored:
            return self.head(self._features(x))
        # The mean is taken before the head, so that constants of pairs see one head.
        return self.head((self._features(x) + self._features(x.flip(3))) / 2)

    def _features(self, x: Tensor) -> Tensor:
        return self.dense(self.neck(self.trunk(self.stem(self.scale(x)))))

    def constants(self) -> Tensor:
        """K_ab as training sees it: a lower estimate, differentiable in the stem and the head."""
        with torch.autocast(self.direction.device.type, enabled=False):
            with torch.no_grad():
                turned = nn.functional.conv_transpose2d(self.stretched(), self.stem.weight, stride=2, padding=2)
                self.direction.copy_(turned / torch.linalg.vector_norm(turned))
            apart = torch.linalg.vector_norm(self.head.weight[:, None] - self.head.weight[None], dim=2)
            return 4 * torch.linalg.vector_norm(self.stretched()) * apart

    def stretched(self) -> Tensor:
        """What the stem makes of the direction, without its bias."""
        return nn.functional.conv2d(self.direction, self.stem.weight, stride=2, padding=2)

    def orthogonal(self) -> list[nn.Parameter]:
        """The weights that are to stay orthonormal."""
        layers = [*self.trunk, *self.neck, *self.dense]
        return [weight for layer in layers for name, weight in layer.named_parameters() if name == "weight"]


def _max_min() -> nn.Module:
    return lnn.MaxMin(lnn.ChannelPairing.HALVES)


def _projected(many: int, few: int) -> list[nn.Module]:
    layer = nn.Conv2d(many, few, 1)
    nn.init.orthogonal_(layer.weight)
    return [layer, _max_min()]


def _square(width: int) -> nn.Module:
    layer = nn.Linear(width, width)
    layer.weight = nn.Parameter(lnn.near_identity(width))
    return layer


@dataclass(frozen=True)
class Cifar10Shift(Recipe):
    """ShiftNet on CIFAR-10: EMMA at a radius that grows over the first half, averaged weights, a real certificate."""

    epochs: int = 530
    batch: int = 1024
    precision: Precision = Precision.BFLOAT16
    compile: bool = True
    graph: bool = True
    ema: float = 0.999
    channels: tuple[int, ...] = (256, 512)
    depth: tuple[int, ...] = (8, 16)
    neck: int = 512
    width: int = 2048
    dense: int = 6
    pool: int = 4
    objective: Objective = Objective.EMMA
    target: float = 3.0
    final: float = 3.0
    temperature: float = 0.8
    beta: float = 5.0
    jitter: float = 0.2
    cutout: int = 8
    angle: float = 0.0
    zoom: float = 0.0
    mix: float = 0.15
    fade: float = 0.0
    sigma: float = 0.0
    teacher: float = 0.7
    lessons: int = 16
    teacher_width: int = 64
    every: int = 4
    mirrored: bool = False
    held: int = 5000
    count: int | None = None
    learning_rate: float = 7e-4
    warm: float = 0.03
    eps: tuple[float, ...] = (UNIT, 2 * UNIT, 3 * UNIT, 1.0)
    attack_steps: int = 40
    samples: int | None = None

    needs_data = True
    watches = "constant before the head, as training estimates it"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.channels) != len(self.depth) or not 1 <= len(self.channels) <= 3:
            raise ArgumentError(
                f"channels and depth have one number for each stage, one to three of them, got {self.channels} and "
                f"{self.depth}."
            )
        if not 0 <= self.fade <= 1:
            raise ArgumentError(f"fade is a share of the run, in [0, 1], got {self.fade}.")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ArgumentError(f"sigma is a standard deviation >= 0, got {self.sigma}.")
        if self.pool < 1 or (16 >> len(self.channels) - 1) % self.pool:
            raise ArgumentError(
                f"pool must divide the {16 >> len(self.channels) - 1} pixels that the last stage leaves of a side, got "
                f"{self.pool}."
            )

    def sets(self) -> Sets:
        """The training set without the images held out and those; or both published sets."""
        assert self.data is not None, "a recipe that needs data is refused without"
        train = cifar10(self.data)
        train = train if self.count is None else train.at(range(min(self.count, len(train))))
        return Sets(*train.split(self.held, seed=0)) if self.held else Sets(train, cifar10(self.data, train=False))

    def model(self) -> nn.Module:
        """The network, near the identity."""
        return ShiftNet(self.channels, self.depth, self.neck, self.width, self.dense, self.pool, self.mirrored)

    def targets(self, examples: Examples) -> Tensor:
        """A share of each label is what a small ordinary network says, which learns from the same images."""
        hard = nn.functional.one_hot(examples.labels, 10).float()
        if not self.teacher:
            return hard
        teacher = Teacher(3, 10, self.teacher_width).to(examples.inputs.device)
        teacher.teach(examples, lambda x: self.distorted(self.augmented(x)), self.lessons, self.precision.autocast)
        return torch.lerp(hard, teacher.probabilities(examples.inputs), self.teacher)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Flipped, and cropped out of a frame of four zeros."""
        x = flipped(inputs)
        if self.angle or self.zoom:
            x = turned_and_scaled(x, self.angle, self.zoom)
        return cropped(x, 4)

    def distorted(self, x: Tensor, strength: float | Tensor = 1.0) -> Tensor:
        """With other colours, and with a square cut out; at strength 0 as it is."""
        count, device = len(x), x.device
        if self.jitter:
            change = strength * self.jitter
            bright, contrast, colour = 1 + change * (2 * torch.rand(3, count, 1, 1, 1, device=device) - 1)
            x = x * bright
            x = contrast * (x - x.mean((1, 2, 3), keepdim=True)) + x.mean((1, 2, 3), keepdim=True)
            x = (colour * (x - x.mean(1, keepdim=True)) + x.mean(1, keepdim=True)).clamp(0, 1)
        if self.cutout:
            corner = torch.randint(0, 33 - self.cutout, (2, count, 1), device=device)
            there = torch.arange(32, device=device) - corner
            down, across = (there >= 0) & (there < self.cutout)
            # At half of the strength, half of the images have a square.
            down = down & (torch.rand(count, 1, device=device) < strength)
            x = x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.5)
        return x

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Every rival is moved as far as it already is, but no farther than the radius of this moment; or annealing.

        The radius rises to `target` over the first half and goes to `final` over the second. Distortions and mixing
        fade over the last share `fade` of the run, so that it ends on images like those of the test set.
        """
        points = (0.0, 0.1 * UNIT), (0.5, self.target * UNIT), (1.0, self.final * UNIT)
        radius = PiecewiseSchedule(points)(progress)
        strength = LinearSchedule(1.0, 0.0, since=1.0 - self.fade)(progress)
        inputs, labels = cut_and_mixed(self.distorted(inputs, strength), labels, strength * self.mix)
        if self.sigma:
            inputs = inputs + self.sigma * torch.randn_like(inputs)
        logits, constants = model(inputs).float(), single_module(model, ShiftNet).constants()
        if self.objective is Objective.EMMA:
            return EMMA(radius)(logits, labels, constants)
        classes = labels.argmax(1)
        own = constants[classes]
        # The lead on every rival as a radius; on itself, where the constant is 0, it is 0 as well.
        radii = (logits.gather(1, classes[:, None]) - logits) / torch.where(own > 0, own, 1.0)
        # Temperature and offset are radii too. Adam and Muon do not see the scale of a loss.
        return LogitAnnealing(self.temperature * UNIT, radius, self.beta)(-radii, classes)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """Muon on the orthogonal weights, Adam on stem, biases and head."""
        tied, free = split_orthonormal(model)
        rare = [weight for weight in tied if max(weight.shape) >= LARGE]
        often = [weight for weight in tied if max(weight.shape) < LARGE]
        groups: list[dict[str, object]] = [{"params": often}, {"params": rare, "every": self.every}]
        muon = StiefelMuon([group for group in groups if group["params"]], lr=self.learning_rate)
        return [muon, torch.optim.Adam(free, lr=self.learning_rate)]

    @property
    def rate(self) -> Schedule:
        """Up over the first steps, then a cosine."""
        return WarmCosineSchedule(self.warm)

    def settled(self, model: nn.Module) -> None:
        """Averages of orthogonal weights are not orthogonal: pull them back. Nothing trains them any more."""
        assert isinstance(model, ShiftNet), "the loop gives what `model` returned"
        lnn.orthonormal_(model.orthogonal())
        model.requires_grad_(False)

    def constant(self, model: nn.Module) -> float:
        """4 sigma(stem), as training sees it."""
        net = single_module(model, ShiftNet)
        with torch.no_grad():
            return 4 * float(torch.linalg.vector_norm(net.stretched()))

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Constants of all pairs: every layer proven as it is, the last one by pairs."""
        return head_pairwise(model, example, DAG())

    @property
    def goal(self) -> Goal:
        """The customary radii, with an attack of so many steps, 0 for none."""
        attack = PGD(eps=UNIT, steps=self.attack_steps, low=0.0, high=1.0) if self.attack_steps else None
        return Goal(self.eps, attack=attack, samples=self.samples)

    def quick(self) -> "Cifar10Shift":
        """One epoch of a small network in float32, not compiled."""
        small = replace(
            self,
            compile=False,
            graph=False,
            lessons=1,
            teacher_width=4,
            precision=Precision.FLOAT32,
            channels=(16, 32),
            depth=(1, 1),
            neck=16,
            width=32,
            dense=1,
        )
        return replace(small, epochs=1, batch=500, held=32, eps=(UNIT, 2 * UNIT), attack_steps=2)


def network() -> nn.Module:
    """The network of the default settings, without training: for `lipkit certify`, `attack`, `bound` and `verify`."""
    # A recipe without a folder of data is refused; nothing is read from it here.
    return Cifar10Shift(data=Path()).model().requires_grad_(False)
