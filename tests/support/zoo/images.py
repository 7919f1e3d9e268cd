"""Models of the zoo that take images or sequences with channels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from support.zoo.entry import Plain, entry


def conv(c_in: int, c_out: int, kernel: int = 3, **options: object) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, **{"padding": kernel // 2, **options})  # pyright: ignore[reportArgumentType]


@entry(3, 8, 8)
def cnn() -> nn.Module:
    return nn.Sequential(
        conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), conv(4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5)
    )


@entry(3, 8, 8)
def cnn_batch_norm() -> nn.Module:
    return nn.Sequential(
        conv(3, 4, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


class PostActivation(nn.Module):
    """relu(x + f(x)), with a projection where the shape changes."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1) -> None:
        super().__init__()
        self.a, self.bn_a = conv(c_in, c_out, stride=stride, bias=False), nn.BatchNorm2d(c_out)
        self.b, self.bn_b = conv(c_out, c_out, bias=False), nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Identity() if stride == 1 and c_in == c_out else nn.Conv2d(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn_a(self.a(x)))
        y = self.bn_b(self.b(y))
        y += self.skip(x)
        return self.relu(y)


@entry(3, 8, 8)
def resnet() -> nn.Module:
    return nn.Sequential(
        conv(3, 4),
        PostActivation(4, 4),
        PostActivation(4, 6, 2),
        PostActivation(6, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


@entry(3, 6, 6)
def dense_concat() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat([x, layer(x)], 1)
        return x.mean((2, 3))

    return Plain(run, **{f"layer{i}": nn.Sequential(conv(3 + 2 * i, 2), nn.ReLU()) for i in range(3)})


@entry(2, 6, 6)
def inception() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        return torch.cat([functional.relu(branch(x)) for branch in self.children()], dim=1).flatten(1)

    pool = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(2, 2, 1))
    return Plain(run, one=conv(2, 2, 1), three=conv(2, 2), five=conv(2, 2, 5), pool=pool)


@entry(2, 6, 6)
def circular_pad() -> nn.Module:
    return nn.Sequential(conv(2, 3, padding_mode="circular"), nn.ReLU(), conv(3, 2, padding_mode="circular"))


@entry(2, 6, 6)
def reflect_and_replicate_pad() -> nn.Module:
    return nn.Sequential(conv(2, 3, padding_mode="reflect"), nn.ReLU(), conv(3, 2, 5, padding_mode="replicate"))


@entry(2, 5, 5)
def constant_pad() -> nn.Module:
    return nn.Sequential(
        nn.ConstantPad2d((1, 0, 2, 1), 0.7),
        nn.Conv2d(2, 2, 3),
        nn.ReLU(),
        nn.ReflectionPad2d(1),
        nn.ZeroPad2d((1, -1, 0, 0)),
    )


@entry(2, 7, 7)
def same_padding() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 4, padding="same"), nn.ReLU(), nn.Conv2d(3, 2, 2, padding="same", dilation=3))


@entry(3, 4, 4)
def transposed() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(3, 2, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(2, 2, 2, groups=2), nn.LeakyReLU()
    )


@entry(4, 8, 8)
def depthwise_grouped_dilated() -> nn.Module:
    return nn.Sequential(
        conv(4, 4, groups=4),
        nn.Conv2d(4, 8, 1),
        nn.ReLU6(),
        nn.Conv2d(8, 6, 3, 2, 2, dilation=2, groups=2),
        nn.ReLU(),
    )


@entry(2, 12)
def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, 2, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(16, 2)
    )


@entry(1, 4, 4, 4)
def conv3d() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(16, 2))


@entry(2, 7, 7)
def pooling() -> nn.Module:
    return nn.Sequential(
        nn.MaxPool2d(3, 2, 1), conv(2, 4), nn.AvgPool2d(2, 2, ceil_mode=True), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )


@entry(4, 3, 3)
def shuffled_and_upsampled() -> nn.Module:
    return nn.Sequential(
        nn.PixelShuffle(2),
        conv(1, 4),
        nn.ChannelShuffle(2),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.PixelUnshuffle(2),
        nn.Upsample(scale_factor=1.5, mode="bilinear"),
    )


@entry(2, 4, 4)
def u_net() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        inner = functional.relu(self.down(x))
        middle = functional.relu(self.middle(inner))
        return self.out(torch.cat([functional.interpolate(middle, scale_factor=2), x], 1))

    return Plain(run, down=conv(2, 3, stride=2), middle=conv(3, 3), out=conv(5, 1))


@entry(4, 4, 4)
def group_norm() -> nn.Module:
    return nn.Sequential(conv(4, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 2))


@entry(3, 8, 8)
def patches() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(tokens + self.mix(tokens.transpose(1, 2)).transpose(1, 2)).mean(1)

    mix = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    return Plain(run, embed=nn.Conv2d(3, 5, 4, 4), mix=mix, head=nn.Linear(5, 3))
