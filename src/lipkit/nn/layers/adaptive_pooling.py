"""Pooling to a given size, and over whole images, scaled to constant 1."""

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.core.known_constants import Contraction
from lipkit.nn.core.round_down import round_down
from lipkit.nn.layers.pooling import GlobalPool, Sizes, per_axis

_AVERAGES = {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d}


def windows(length: int, count: int) -> tuple[list[int], list[int]]:
    """The lengths of torch's `count` windows on an axis of `length`, and how many of them each entry is in.

    Window i goes from floor(i n / m) to ceil((i + 1) n / m): neighbours share an entry where m does not divide n.
    """
    ends = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
    covers = [sum(low <= j < high for low, high in ends) for j in range(length)]
    return [high - low for low, high in ends], covers


class _Adaptive(Contraction):
    def __init__(self, output_size: Sizes, dims: int = 2) -> None:
        super().__init__()
        if not 1 <= dims <= 3:
            raise ArgumentError(f"{type(self).__name__}.dims must be 1, 2 or 3, got {dims}.")
        self.output_size = per_axis(output_size, dims, "output_size")
        self.dims = dims
        if min(self.output_size) < 1:
            raise ArgumentError(f"{type(self).__name__}.output_size must be at least 1, got {output_size}.")

    def _size(self, x: Tensor) -> Shape:
        if x.ndim < self.dims:
            raise ShapeError(f"{type(self).__name__} pools {self.dims} axes, got shape {tuple(x.shape)}.")
        return tuple(x.shape[-self.dims :])

    def _shared(self, x: Tensor, power: float) -> tuple[Tensor, Tensor]:
        """For each entry 1 / c^power, c the number of windows it is in; for each window its number of entries."""
        covers = lengths = torch.ones((), dtype=torch.float64, device=x.device)
        for n, m in zip(self._size(x), self.output_size, strict=True):
            sizes, counts = windows(n, m)
            covers = covers[..., None] * torch.tensor(counts, dtype=torch.float64, device=x.device)
            lengths = lengths[..., None] * torch.tensor(sizes, dtype=torch.float64, device=x.device)
        return covers.pow(-power), lengths

    def _means(self, x: Tensor) -> Tensor:
        """torch's adaptive means; it takes at most two axes in front."""
        found = _AVERAGES[self.dims](x.reshape(-1, 1, *self._size(x)), self.output_size)
        return found.reshape(*x.shape[: -self.dims], *self.output_size)


@final
class AdaptiveAvgPool(_Adaptive):
    """y_w = sum over window w of x_j / (n_w c_j)^(1/2): n_w entries in the window, entry j in c_j windows.

    The windows are those of nn.AdaptiveAvgPool; where they differ in length or share entries, each entry is weighted by
    its own count. |y|^2 <= sum_w sum_(j in w) x_j^2 / c_j = |x|^2 by Cauchy and Schwarz.
    Guarantee: constant 1 on every size; where the sizes divide each other, rows are orthonormal, and it is attained.
    Cost: nn.AdaptiveAvgPool and two products.
    Reference: Serrurier et al. 2021 for windows of one size; the weights are ours.

    Args:
        output_size: Length of each pooled axis, one number for all or a tuple.
        dims: Number of trailing axes that are pooled, 1 to 3.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The weighted sums."""
        shares, lengths = self._shared(x, 0.5)
        return self._means(x * round_down(shares, x.dtype)) * round_down(lengths.sqrt(), x.dtype)


@final
class AdaptiveL2NormPool(_Adaptive):
    """y_w = (sum over window w of x_j^2 / c_j)^(1/2), entry j in c_j windows: |y| = |x| on every size.

    Each entry gives a part to each of its windows, and a norm moves no further than what it is of.
    Guarantee: constant 1 on every size, and the norm of the input is kept, up to rounding. The derivative at
    a window of zeros is 0; windows with squares below the smallest normal number count as zero.
    Cost: nn.AdaptiveAvgPool, squares and roots. Reference: the weights are ours.

    Args:
        output_size: Length of each pooled axis, one number for all or a tuple.
        dims: Number of trailing axes that are pooled, 1 to 3.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The weighted norms."""
        # Squares leave the range of float16 early, and lose digits.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        shares, lengths = self._shared(x, 1.0)
        squares = self._means(wide.square() * round_down(shares, wide.dtype)) * round_down(lengths, wide.dtype)
        return safe_root(squares).to(x.dtype)


@final
class GlobalL2NormPool(GlobalPool):
    """The l2 norm over all positions of each channel: constant 1 exactly, and the norm of the input is kept.

    The derivative at a channel of zeros is 0. Cost: one pass.

    Args:
        dims: Number of trailing axes that are pooled.
        keepdim: Whether pooled axes stay, with length 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The norms."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = wide.square().sum(self.pooled_axes(x), keepdim=self.keepdim)
        return safe_root(squares).to(x.dtype)


def safe_root(squares: Tensor) -> Tensor:
    """The root, with derivative 0 at zero; below the smallest normal number it counts as zero."""
    some = squares > torch.finfo(squares.dtype).tiny
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)
