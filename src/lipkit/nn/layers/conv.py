"""Convolutions and transposed convolutions of norm at most one, in one, two and three dimensions."""

from typing import Literal, final

import torch
from torch import nn

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.layers._constrained_layer import ConstrainedLayer, refuse_methods
from lipkit.nn.layers.size_checked import SizeChecked, SizeCheckedTransposed
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.convolutions.aoc import AOC

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]


class _HasTaps(ConstrainedLayer):
    """A convolution of torch, which can take a kernel of another size."""

    def take_kernel(self, kernel: Geometry) -> None:
        """Become a convolution with a kernel of another size, padded as it says: what torch's own code reads."""
        self.kernel_size, self.dilation = kernel.taps, kernel.dilation
        self.padding = tuple(left for left, _ in kernel.padding)
        self._reversed_padding_repeated_twice = [side for pair in reversed(kernel.padding) for side in pair]
        zeros = self.weight.new_zeros(kernel.weight_shape)
        self.register_parameter("weight", nn.Parameter(zeros, self.weight.requires_grad))


class _Conv(_HasTaps, SizeChecked):
    """The constructor of all convolutions: arguments as in torch, and a method for the kernel."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Shape,
        stride: int | Shape = 1,
        padding: str | int | Shape = 0,
        dilation: int | Shape = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod = AOC(),  # noqa: B008 - immutable
    ) -> None:
        refuse_methods(self, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias)
        if padding == "same" and (stride != 1 if isinstance(stride, int) else any(n != 1 for n in stride)):
            raise ArgumentError(
                f"padding='same' keeps the size of an image, and stride={stride} divides it; give the padding as a "
                "number, e.g. kernel_size // 2."
            )
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        # torch's own class comes next: it stands behind this one in the bases of every layer below.
        super().__init__(*shape, bias, padding_mode, device, dtype)
        self.constrain_weight(method)


class _ConvTranspose(_HasTaps, SizeCheckedTransposed):
    """The constructor of all transposed convolutions: arguments as in torch, and a method for the kernel."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Shape,
        stride: int | Shape = 1,
        padding: int | Shape = 0,
        output_padding: int | Shape = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Shape = 1,
        padding_mode: Literal["zeros", "circular"] = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod = AOC(),  # noqa: B008 - immutable
    ) -> None:
        refuse_methods(self, stride=stride, padding=padding, output_padding=output_padding, groups=groups, bias=bias)
        if padding_mode not in ("zeros", "circular"):
            raise ArgumentError(
                f"{type(self).__name__}.padding_mode must be 'zeros' or 'circular', got {padding_mode!r}; repeated "
                "entries of a border have no transposed convolution of norm one."
            )
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups)
        # torch transposes zero borders only; `SizeCheckedTransposed` wraps circles in its own forward.
        super().__init__(*shape, bias, dilation, "zeros", device, dtype)
        self.padding_mode = padding_mode
        self.constrain_weight(method)


@final
class Conv1d(_Conv, nn.Conv1d):
    """nn.Conv1d with operator norm at most 1, on inputs of every size.

    A geometry in which the method guarantees nothing is refused, with the reason: by the constructor, or at the first
    forward where it depends on the size of the input.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All other arguments are those of nn.Conv1d.
    """


@final
class Conv2d(_Conv, nn.Conv2d):
    """nn.Conv2d with operator norm at most 1, on inputs of every size.

    A geometry in which the method guarantees nothing is refused, with the reason: by the constructor, or at the first
    forward where it depends on the size of the input.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All other arguments are those of nn.Conv2d.
    """


@final
class Conv3d(_Conv, nn.Conv3d):
    """nn.Conv3d with operator norm at most 1, on inputs of every size.

    A geometry in which the method guarantees nothing is refused, with the reason: by the constructor, or at the first
    forward where it depends on the size of the input.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All other arguments are those of nn.Conv3d.
    """


@final
class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """nn.ConvTranspose1d with operator norm at most 1, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same. With
    padding_mode="circular", which torch does not have, it is the adjoint of the circular convolution on its outputs.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All others are those of nn.ConvTranspose1d.
    """


@final
class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """nn.ConvTranspose2d with operator norm at most 1, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same. With
    padding_mode="circular", which torch does not have, it is the adjoint of the circular convolution on its outputs.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All others are those of nn.ConvTranspose2d.
    """


@final
class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """nn.ConvTranspose3d with operator norm at most 1, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same. With
    padding_mode="circular", which torch does not have, it is the adjoint of the circular convolution on its outputs.

    Args:
        method: How the free numbers become the kernel; by default `AOC()`. All others are those of nn.ConvTranspose3d.
    """
