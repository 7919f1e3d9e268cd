"""Substitutes of layer, group and root mean square normalisation that have constant 1."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.activations._channels import per_channel
from lipkit.nn.core.bounded_length import as_logarithm, bound_length, positive_number, wide
from lipkit.nn.core.known_constants import Contraction


class _Normalization(Contraction):
    """sqrt(e) x / sqrt(mean(x^2) + e) over some entries, times weights whose largest is at most 1, plus a bias.

    e is learnt, one number for all entries, so the factor sqrt(e) is common.
    """

    def __init__(
        self, shape: tuple[int, ...], affine: bool, bias: bool, eps: float,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not shape or min(shape) < 1:
            raise ArgumentError(f"{type(self).__name__} needs at least one entry to normalise, got the shape {shape}.")
        start = as_logarithm(eps, f"{type(self).__name__}.eps")
        self.log_eps = nn.Parameter(torch.full((), start, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.ones(shape, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)) if affine and bias else None

    def divided(self, x: Tensor, dim: tuple[int, ...]) -> Tensor:
        """The quotient, over the axes `dim`."""
        entries = math.prod([x.shape[axis] for axis in dim])
        return bound_length(x, (positive_number(self.log_eps, x) * entries).sqrt(), dim)

    def shares(self) -> Tensor | None:
        """The weights, divided by the largest where it exceeds one: unlike clipping this keeps their ratios."""
        return None if self.weight is None else self.weight / self.weight.abs().amax().clamp(min=1.0)


class _LastAxes(_Normalization):
    """A normalisation over the last axes."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        elementwise_affine: bool,
        bias: bool,
        eps: float,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        super().__init__(shape, elementwise_affine, bias, eps, device, dtype)
        self.normalized_shape = shape

    def normalized(self, x: Tensor, centered: bool) -> Tensor:
        """The whole layer."""
        if tuple(x.shape[-len(self.normalized_shape) :]) != self.normalized_shape:
            raise ShapeError(
                f"{type(self).__name__}({self.normalized_shape}) got an input of shape {tuple(x.shape)}; its last axes "
                "must have these lengths."
            )
        dim = tuple(range(-len(self.normalized_shape), 0))
        y = wide(x)
        y = self.divided(y - y.mean(dim, keepdim=True) if centered else y, dim).to(x.dtype)
        shares = self.shares()
        y = y if shares is None else y * shares.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)


@final
class LayerNorm(_LastAxes):
    """sqrt(e) (x - mean) / sqrt(var + e) over the last axes, times weights of at most 1, plus a bias; e > 0 is learnt.

    nn.LayerNorm has the constant max|weight| / sqrt(eps), 316 for eps = 1e-5. Times sqrt(e) it is 1 for every e: with a
    small e tokens get equal lengths, which are then short; with a large one they are only centered, as by `CenterNorm`.
    Weights are divided by the largest where that exceeds 1.
    Guarantee: constant 1, in training and in evaluation: a projector, then `bound_length`, then factors of at most 1.
    Cost: a few passes. Our substitute; the constant of the original: Qi et al. 2023, corrected.

    Args:
        normalized_shape: Lengths of the last axes.
        elementwise_affine: Whether there are weights and a bias.
        bias: Whether there is a bias.
        eps: e at the start.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1.0,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, elementwise_affine, bias, eps, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The centered input, divided and weighted."""
        return self.normalized(x, centered=True)


@final
class RMSNorm(_LastAxes):
    """sqrt(e) x / sqrt(mean(x^2) + e) over the last axes, times weights of at most 1; e > 0 is learnt. See `LayerNorm`.

    Guarantee: constant 1, in training and in evaluation. Cost: a few passes. Our substitute.

    Args:
        normalized_shape: Lengths of the last axes.
        eps: e at the start.
        elementwise_affine: Whether there are weights.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1.0,
        elementwise_affine: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, elementwise_affine, False, eps, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The input, divided and weighted."""
        return self.normalized(x, centered=False)


@final
class GroupNorm(_Normalization):
    """`LayerNorm` for each of `num_groups` groups of channels, on axis 1, with a weight and a bias for each channel.

    Guarantee: constant 1, in training and in evaluation: groups are disjoint. Cost: a few passes. Our substitute.

    Args:
        num_groups: Number of groups; divides num_channels.
        num_channels: Number of channels, on axis 1 after the batch.
        eps: e at the start.
        affine: Whether there are weights and a bias.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1.0,
        affine: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm splits its channels into groups of one size, got {num_groups} groups of {num_channels} "
                "channels; take a number of groups that divides them."
            )
        super().__init__((num_channels,), affine, True, eps, device, dtype)
        self.num_groups = num_groups
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        """The centered groups, divided and weighted."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm({self.num_groups}, {self.num_channels}) got an input of shape {tuple(x.shape)}; it takes "
                f"batches (batch, {self.num_channels}, ...)."
            )
        groups = wide(x).reshape(x.shape[0], self.num_groups, -1)
        y = self.divided(groups - groups.mean(-1, keepdim=True), (-1,)).reshape(x.shape).to(x.dtype)
        shares = self.shares()
        y = y if shares is None else y * per_channel(shares.to(x.dtype), x, 1)
        return y if self.bias is None else y + per_channel(self.bias.to(x.dtype), x, 1)
