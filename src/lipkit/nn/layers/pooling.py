"""Pooling over windows, scaled to constant 1."""

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.known_constants import SAFE, Contraction

Sizes = int | tuple[int, ...]


def per_axis(value: Sizes, dims: int, name: str) -> tuple[int, ...]:
    """One number an axis, from one for all or from a tuple."""
    found = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(found) != dims:
        raise ArgumentError(f"{name} needs one number or {dims} of them, got {value}.")
    return found


def windows_per_entry(kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> int:
    """The largest number of windows that contain one input: the product over axes of ceil(k gcd(s, d) / s).

    Windows i with i s + t d = n for a tap t < k: solutions t lie s / gcd(s, d) apart. It is attained on large images
    and an upper bound on small ones.
    """
    # A list: compilers do not follow a generator into math.prod.
    return math.prod([-(-k * math.gcd(s, d) // s) for k, s, d in zip(kernel, stride, dilation, strict=True)])


class _Windows(Contraction):
    """Windows of `kernel_size` every `stride` (by default without overlap), with zero padding.

    Args:
        kernel_size: Length of a window, for all axes or one for each.
        stride: Distance of neighbouring windows; that of the kernel if None.
        padding: Zeros on both sides.
    """

    dims: ClassVar[int]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self.kernel_size = per_axis(kernel_size, self.dims, "kernel_size")
        self.stride = self.kernel_size if stride is None else per_axis(stride, self.dims, "stride")
        self.padding = per_axis(padding, self.dims, "padding")
        if min(self.kernel_size) < 1 or min(self.stride) < 1 or min(self.padding) < 0:
            raise ArgumentError(f"{type(self).__name__} needs kernel_size, stride >= 1 and padding >= 0, got {self}.")
        self.cover = windows_per_entry(self.kernel_size, self.stride, (1,) * self.dims)
        # From the mean over a window to its sum (or norm) over sqrt(entries cover).
        self.factor = math.sqrt(math.prod(self.kernel_size) / self.cover) * SAFE

    def _window_means(self, x: Tensor) -> Tensor:
        """The mean over each window, the padding counted."""
        return _AVERAGES[self.dims](x, self.kernel_size, self.stride, self.padding)


_AVERAGES: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_MAXIMA: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


class _ScaledAvgPool(_Windows):
    def forward(self, x: Tensor) -> Tensor:
        """The sum over each window, over sqrt(size cover)."""
        return self._window_means(x) * self.factor


@final
class ScaledAvgPool1d(_ScaledAvgPool):
    """The sum over each window divided by sqrt(n c): n entries a window, c = ceil(k/s) windows over one entry.

    Windows without overlap make the rows orthonormal: constant 1 exactly, where the mean has 1/sqrt(n). With overlap
    Schur's test, sqrt(row sum * column sum), gives at most 1, attained on large images when the stride divides the
    kernel. Guarantee: constant 1 on every size. Cost: nn.AvgPool1d and one product.
    """

    dims = 1


@final
class ScaledAvgPool2d(_ScaledAvgPool):
    """The sum over each window divided by sqrt(n c): n entries a window, c the most windows over one entry.

    See `ScaledAvgPool1d`. Guarantee: constant 1 on every size. Cost: nn.AvgPool2d and one product.
    """

    dims = 2


@final
class ScaledAvgPool3d(_ScaledAvgPool):
    """The sum over each window divided by sqrt(n c): n entries a window, c the most windows over one entry.

    See `ScaledAvgPool1d`. Guarantee: constant 1 on every size. Cost: nn.AvgPool3d and one product.
    """

    dims = 3


class _L2NormPool(_Windows):
    def forward(self, x: Tensor) -> Tensor:
        """The norm of each window, over sqrt(cover)."""
        # Squares leave the range of float16 early, and lose digits.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        means = self._window_means(wide.square())
        # The root has no derivative at 0; there the norm gets the subgradient 0.
        some = means > torch.finfo(wide.dtype).tiny
        return (torch.where(some, torch.where(some, means, 1.0).sqrt(), 0.0) * self.factor).to(x.dtype)


@final
class L2NormPool1d(_L2NormPool):
    """The l2 norm of each window divided by sqrt(c), c = ceil(k/s) the most windows over one entry.

    A norm is 1-Lipschitz, and an entry counts in at most c windows. Guarantee: constant 1 on every size; without
    overlap it is attained, and the norm of the input is kept. The derivative at a window of zeros is 0. Windows with
    squares below the smallest normal number count as zero.
    """

    dims = 1


@final
class L2NormPool2d(_L2NormPool):
    """The l2 norm of each window divided by sqrt(c), c the most windows over one entry; see `L2NormPool1d`.

    Guarantee: constant 1 on every size.
    """

    dims = 2


@final
class L2NormPool3d(_L2NormPool):
    """The l2 norm of each window divided by sqrt(c), c the most windows over one entry; see `L2NormPool1d`.

    Guarantee: constant 1 on every size.
    """

    dims = 3


class _MaxPool(_Windows):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = per_axis(dilation, self.dims, "dilation")
        self.ceil_mode = ceil_mode
        self.cover = windows_per_entry(self.kernel_size, self.stride, self.dilation)
        self.factor = 1.0 if self.cover == 1 else SAFE / math.sqrt(self.cover)

    def forward(self, x: Tensor) -> Tensor:
        """The largest entry of each window, over sqrt(cover)."""
        found = _MAXIMA[self.dims](x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return found if self.cover == 1 else found * self.factor


@final
class MaxPool1d(_MaxPool):
    """The largest entry of each window divided by sqrt(c), c = ceil(k gcd(s, d)/s) the most windows over one entry.

    The Jacobian has one 1 in each row and at most c in a column: its norm is the root of the fullest column, and an
    entry that is largest in all its windows attains it. So nn.MaxPool has constant 1 only without overlap.
    Guarantee: constant 1 on every size. Cost: nn.MaxPool1d, and one product where windows overlap.
    """

    dims = 1


@final
class MaxPool2d(_MaxPool):
    """The largest entry of each window divided by sqrt(c), c the most windows over one entry; see `MaxPool1d`.

    Guarantee: constant 1 on every size. Kernel 3 with stride 2 has c = 4, so the factor is 1/2.
    """

    dims = 2


@final
class MaxPool3d(_MaxPool):
    """The largest entry of each window divided by sqrt(c), c the most windows over one entry; see `MaxPool1d`.

    Guarantee: constant 1 on every size.
    """

    dims = 3


class GlobalPool(Contraction):
    """A pool over all positions: the number of trailing axes that are pooled, and whether they stay."""

    def __init__(self, dims: int = 2, keepdim: bool = True) -> None:
        super().__init__()
        if dims < 1:
            raise ArgumentError(f"{type(self).__name__}.dims must be at least 1, got {dims}.")
        self.dims = dims
        self.keepdim = keepdim

    def pooled_axes(self, x: Tensor) -> tuple[int, ...]:
        """The axes of x that are pooled; an input with fewer axes is refused."""
        if x.ndim < self.dims:
            raise ShapeError(f"{type(self).__name__} pools {self.dims} axes, got shape {tuple(x.shape)}.")
        return tuple(range(-self.dims, 0))


@final
class GlobalAvgPool(GlobalPool):
    """The sum over all positions of a channel divided by sqrt(positions): constant 1 exactly, where the mean has less.

    `dims` trailing axes are pooled, and kept with length 1 if `keepdim`. The factor depends on the size of the input.

    Args:
        dims: Number of trailing axes that are pooled.
        keepdim: Whether pooled axes stay, with length 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The mean times sqrt(positions)."""
        return x.mean(self.pooled_axes(x), keepdim=self.keepdim) * (math.sqrt(math.prod(x.shape[-self.dims :])) * SAFE)
