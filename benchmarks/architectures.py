"""Networks the benchmarks measure: residual networks for ImageNet, and the small ones of the literature."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)), with a projection where shapes change."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _basic(c_in: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(_conv(c_in, width, 3, stride), nn.ReLU(), _conv(width, width, 3))
    return Residual(body, nn.Identity() if (c_in, stride) == (width, 1) else _conv(c_in, width, 1, stride))


def _bottleneck(c_in: int, width: int, stride: int) -> Residual:
    c_out = 4 * width
    body = nn.Sequential(
        _conv(c_in, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, c_out, 1)
    )
    return Residual(body, nn.Identity() if (c_in, stride) == (c_out, 1) else _conv(c_in, c_out, 1, stride))


def resnet(depths: Sequence[int], bottleneck: bool, classes: int = 1000, first: int = 64) -> nn.Sequential:
    """A residual network for images of 224 x 224 (He et al. 2016), `first` channels wide in its first stage."""
    layers: list[nn.Module] = [_conv(3, first, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = first
    for stage, count in enumerate(depths):
        width = first * 2**stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            layers.append((_bottleneck if bottleneck else _basic)(channels, width, stride))
            channels = width * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def resnet18() -> nn.Sequential:
    """ResNet-18."""
    return resnet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> nn.Sequential:
    """ResNet-50."""
    return resnet((3, 4, 6, 3), bottleneck=True)


def calibrated(model: nn.Module, shape: Sequence[int], seed: int = 0) -> nn.Module:
    """The model in evaluation mode, its batch norms with statistics of random images, as training would leave them."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4, *shape, generator=generator))
    return model.eval()


def four_c_three_f() -> nn.Sequential:
    """4C3F on MNIST, as in Local-Lip and GloRo."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def six_c_two_f() -> nn.Sequential:
    """6C2F on CIFAR-10."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip
