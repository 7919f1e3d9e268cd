"""Transposed convolutions of norm at most one, in one, two and three dimensions."""

from typing import Literal, final

import torch
from torch import nn

from lipkit.nn.layers._weighted import Convolution
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.rescale import AOL


@final
class ConvTranspose1d(Convolution, nn.ConvTranspose1d):
    """nn.ConvTranspose1d with operator norm at most 1 by `method`, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] = 0,
        output_padding: int | tuple[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int] = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups)
        nn.ConvTranspose1d.__init__(self, *shape, bias, dilation, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)


@final
class ConvTranspose2d(Convolution, nn.ConvTranspose2d):
    """nn.ConvTranspose2d with operator norm at most 1 by `method`, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups)
        nn.ConvTranspose2d.__init__(self, *shape, bias, dilation, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)


@final
class ConvTranspose3d(Convolution, nn.ConvTranspose3d):
    """nn.ConvTranspose3d with operator norm at most 1 by `method`, on inputs of every size.

    It is the adjoint of a convolution with the same weight, so the methods and their promises are the same.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        output_padding: int | tuple[int, int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int, int] = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod | None = None,
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups)
        nn.ConvTranspose3d.__init__(self, *shape, bias, dilation, padding_mode, device, dtype)
        self.constrained_by(AOL() if method is None else method)
