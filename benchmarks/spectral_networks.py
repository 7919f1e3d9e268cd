"""Networks for the study of the spectral score: plans that differ in form, data and training, and their training."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from cifar10_images import MEAN
from convolution_families import FAMILIES, network
from torch import Tensor, nn
from torch.nn import functional

from lipkit import analysis
from lipkit import nn as lnn
from lipkit.data import cropped, flipped, with_uniform_noise


class Times(nn.Module):
    """Multiplies by 4: pixels less their mean get a deviation of about 1."""

    def forward(self, x: Tensor) -> Tensor:
        return 4 * x


class Block(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
        )
        same = before == after and stride == 1
        projected = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else projected

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.inner(x))


def residual(width: int, *blocks: int) -> nn.Module:
    """A residual network; `residual(64, 2, 2, 2, 2)` is ResNet-18 for small images."""
    parts: list[nn.Module] = [Times(), nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage, count in enumerate(blocks):
        for place in range(count):
            parts.append(Block(before, width << stage, 2 if stage and not place else 1))
            before = width << stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def convolutional(width: int, kernel: int = 3) -> nn.Module:
    """Three convolutions with pools, and two dense layers."""
    parts: list[nn.Module] = [Times()]
    before = 3
    for after in (width, 2 * width, 4 * width):
        parts += [nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16 * before, 256), nn.ReLU(), nn.Linear(256, 10))


def dense(width: int) -> nn.Module:
    """Four dense layers."""
    sizes = (3072, width, width, width)
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(Times(), nn.Flatten(), *hidden, nn.Linear(width, 10))


class Patches(nn.Module):
    """A small transformer on patches of 4 x 4 pixels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        layers = [
            nn.TransformerEncoderLayer(width, width // 32, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.trunk = nn.Sequential(*layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.cut(4 * x).flatten(2).mT + self.places).mean(1))


def lipschitz(family: str) -> nn.Module:
    """Layers of constant 1 up to the last, by a family of convolutions."""
    return network(FAMILIES[family], 64, 6)


@dataclass(frozen=True)
class Plan:
    """What is trained, and how. `attack` is the radius of two signed steps, `noise` the deviation of white noise.

    `mislabelled` is the share of random labels. `low` and `high` keep the frequencies up to that radius, or above it,
    and take the others from another image.
    """

    name: str
    make: Callable[[], nn.Module]
    augmented: bool = True
    decay: float = 0.05
    attack: float = 0.0
    noise: float = 0.0
    mislabelled: float = 0.0
    low: float | None = None
    high: float | None = None
    half: bool = True
    rate: float = 2e-3


PLANS = (
    Plan("ResNet 64", lambda: residual(64, 2, 2, 2)),
    Plan("ResNet 64, attacked 8/255", lambda: residual(64, 1, 1, 1), attack=8 / 255),
    Plan("ResNet 64, noise .2", lambda: residual(64, 1, 1, 1), noise=0.2),
    Plan("convolutions 64", lambda: convolutional(64)),
    Plan("SLLConv", lambda: lipschitz("SLLConv"), half=False, decay=0.0, rate=1e-3),
    Plan("dense 1024", lambda: dense(1024), rate=5e-4),
    Plan("ResNet 64, low band", lambda: residual(64, 1, 1, 1), low=0.3),
    Plan("ResNet 64, high band", lambda: residual(64, 1, 1, 1), high=0.3),
    Plan("patches 192", lambda: Patches(192, 6), rate=1e-3),
    Plan("ResNet 16", lambda: residual(16, 1, 1, 1)),
    Plan("ResNet 64, attacked 2/255", lambda: residual(64, 1, 1, 1), attack=2 / 255),
    Plan("ResNet 64, noise .05", lambda: residual(64, 1, 1, 1), noise=0.05),
    Plan("ResNet 64, 40 % random labels", lambda: residual(64, 1, 1, 1), mislabelled=0.4),
    Plan("ResNet 64, nothing moved", lambda: residual(64, 1, 1, 1), augmented=False, decay=0.0),
    Plan("AOL", lambda: lipschitz("AOL"), half=False, decay=0.0, rate=1e-3),
    Plan("ResNet 64, decay 1", lambda: residual(64, 1, 1, 1), decay=1.0),
    Plan("convolutions 16, kernels 7", lambda: convolutional(16, 7)),
    Plan("ResNet-18", lambda: residual(64, 2, 2, 2, 2)),
)


def centred(images: Tensor) -> Tensor:
    """Pixels less the mean of their channel; units stay those of pixels."""
    return images - torch.tensor(MEAN, device=images.device).view(3, 1, 1)


def attacked(model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int) -> Tensor:
    """Signed steps up the cross-entropy in the linf ball and the box of pixels; one step of full length is FGSM."""
    box = centred(torch.stack([torch.zeros(3, 1, 1), torch.ones(3, 1, 1)]).to(x.device))
    low, high = torch.maximum(x - eps, box[0]), torch.minimum(x + eps, box[1])
    now = x
    for _ in range(steps):
        now = now.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(model(now).float(), y), now)
        now = now.detach() + (eps if steps == 1 else 2.5 * eps / steps) * gradient.sign()
        now = torch.minimum(torch.maximum(now, low), high)
    return now


def banded(images: Tensor, plan: Plan) -> Tensor:
    """The training images of a plan, its bands replaced."""
    baseline = analysis.ReplacementBaseline()
    if plan.low is not None:
        return analysis.low_pass(images, plan.low, baseline=baseline)
    if plan.high is not None:
        return analysis.high_pass(images, plan.high, baseline=baseline)
    return images


def train(plan: Plan, images: Tensor, labels: Tensor, seconds: float, batch: int) -> tuple[nn.Module, int]:
    """A network in evaluation mode after the given time, and the steps made. AdamW, rate by a cosine over the time."""
    device = images.device
    model = plan.make().to(device).train()
    if plan.half and images.is_cuda:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    given, truth = banded(images, plan), with_uniform_noise(labels, 10, plan.mislabelled, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=plan.decay, fused=images.is_cuda)
    begin, steps, share = time.perf_counter(), 0, 0.0
    while share < 1:
        warm = min(1.0, steps / 100 + 0.01)
        optimizer.param_groups[0]["lr"] = plan.rate * warm * 0.5 * (1 + math.cos(math.pi * share))
        chosen = torch.randint(len(given), (batch,), device=device)
        x, y = given[chosen], truth[chosen]
        if plan.augmented:
            x = cropped(flipped(x), 4)
        together = nullcontext() if plan.half else lnn.batched(model)
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.half), together:
            if plan.attack:
                x = attacked(model, x, y, plan.attack, 2)
            if plan.noise:
                x = x + plan.noise * torch.randn_like(x)
            loss = functional.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        steps += 1
        if steps % 20 == 0 and images.is_cuda:
            # The queue of a GPU runs ahead of the clock.
            torch.cuda.synchronize()
        share = (time.perf_counter() - begin) / seconds
    return model.eval(), steps
