"""Convolutions of norm at most one, in one, two and three dimensions."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from lipkit.nn.layers._weighted import Convolution
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.rescale import AOL

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]


@final
class Conv1d(Convolution, nn.Conv1d):
    """nn.Conv1d with operator norm at most 1 by `method`, on inputs of every size.

    The default method is `AOL()`. A geometry in which the method guarantees nothing is refused, with the reason: by
    the constructor, or at the first forward where it depends on the size of the input.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: str | int | tuple[int] = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        nn.Conv1d.__init__(self, *shape, bias, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)


@final
class Conv2d(Convolution, nn.Conv2d):
    """nn.Conv2d with operator norm at most 1 by `method`, on inputs of every size.

    The default method is `AOL()`. A geometry in which the method guarantees nothing is refused, with the reason: by
    the constructor, or at the first forward where it depends on the size of the input.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        nn.Conv2d.__init__(self, *shape, bias, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)


@final
class Conv3d(Convolution, nn.Conv3d):
    """nn.Conv3d with operator norm at most 1 by `method`, on inputs of every size.

    The default method is `AOL()`. A geometry in which the method guarantees nothing is refused, with the reason: by
    the constructor, or at the first forward where it depends on the size of the input.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: str | int | tuple[int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        nn.Conv3d.__init__(self, *shape, bias, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)
