"""The meaning of a weight: a matrix, or the kernel of a convolution with its stride, padding and groups."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn

from lipkit.errors import ShapeError, UnsupportedError
from lipkit.linops import (
    CircularConv,
    Conv,
    ConvExponential,
    ConvTranspose,
    Dense,
    Index,
    LinearOperator,
    Padding,
    Shape,
)
from lipkit.linops.conv_exponential import same_padding
from lipkit.nn.core.image_frame import Images, keep_every, resize_groups, resize_images, spread_out

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@final
@dataclass(frozen=True)
class Geometry:
    """The action of a weight: `groups` independent blocks (rows, cols, *taps), and the numbers of a convolution.

    A matrix has no taps and the remaining fields empty. The weight of a transposed convolution is the kernel of the
    convolution it is the adjoint of, so `rows` are its input channels; norms are the same. `padding` holds a pair for
    each axis. A kernel that is made for images of one size, in Fourier space, has that `size`; others hold on all.
    A weight whose exponential acts on images has the degree of its `series`: its blocks are square, with a side of
    max(rows, cols), every term keeps the size of images, and channels, padding and stride come before and behind it.

    Zero padding makes a section of the operator on the infinite grid, which no kernel can enlarge. A circle may be
    wrapped once: more padding than the dilated kernel needs, or a stride that does not divide the length, repeats rows.
    Reflected and replicated borders count entries several times: no kernel condition can bound them by one.
    A transposed convolution with circular padding is the adjoint of the circular convolution on its outputs.
    """

    groups: int
    rows: int
    cols: int
    taps: Shape = ()
    stride: Shape = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: Shape = ()
    mode: Padding = Padding.ZEROS
    transposed: bool = False
    output_padding: Shape = ()
    size: Shape = ()
    series: int = 0

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise ShapeError(f"A weight needs at least one entry on every axis, got blocks of shape {self.shape}.")
        if self.mode in (Padding.REFLECT, Padding.REPLICATE) and any(map(any, self.padding)):
            raise UnsupportedError(
                f"Padding mode {self.mode.value!r} repeats entries of the border, so the norm of the layer exceeds "
                "that of its kernel (about 1.8 for kernel 3); use padding_mode='zeros' or 'circular'."
            )
        if self.mode is Padding.CIRCULAR and any(
            sum(sides) > d * (k - 1) for sides, d, k in zip(self.padding, self.dilation, self.taps, strict=True)
        ):
            raise UnsupportedError(
                f"Circular padding {self.padding} is more than kernel {self.taps} with dilation {self.dilation} needs, "
                "so some outputs would be computed twice; pad by dilation (kernel - 1) in all on each axis."
            )
        if self.wraps_outputs and self.output_padding != self._rests_on_a_circle:
            raise UnsupportedError(
                f"A transposed convolution with circular padding {self.padding}, kernel {self.taps}, stride "
                f"{self.stride} and output_padding {self.output_padding} makes circles that the stride does not "
                f"divide; use output_padding={self._rests_on_a_circle}."
            )

    @property
    def wraps_outputs(self) -> bool:
        """Whether this is the adjoint of a convolution that pads around a circle."""
        return self.transposed and self.mode is Padding.CIRCULAR and any(map(any, self.padding))

    @property
    def _rests_on_a_circle(self) -> Shape:
        """The output padding with which the stride divides the outputs; on axes without padding, what was asked for."""
        axes = zip(self.padding, self.taps, self.stride, self.dilation, self.output_padding, strict=True)
        return tuple(
            (sum(sides) - d * (k - 1) - 1) % s if any(sides) else min(rest, s - 1) for sides, k, s, d, rest in axes
        )

    @property
    def shape(self) -> Shape:
        """The shape of the blocks: (groups, rows, cols, *taps)."""
        rows, cols = (max(self.rows, self.cols),) * 2 if self.series else (self.rows, self.cols)
        return (self.groups, rows, cols, *self.taps)

    @property
    def weight_shape(self) -> Shape:
        """The shape of the weight of the torch module: (groups rows, cols, *taps)."""
        groups, rows, *block = self.shape
        return (groups * rows, *block)

    def blocks(self, weight: Inexact[Tensor, "..."]) -> Inexact[Tensor, "groups *block"]:
        """The weight of the torch module, or its free numbers, as one block for each group."""
        return weight.unflatten(0, (self.groups, -1))

    def join(self, blocks: Inexact[Tensor, "groups *block"]) -> Inexact[Tensor, "..."]:
        """The blocks as the weight of the torch module, or as its free numbers."""
        return blocks.flatten(0, 1)

    def check_channels(self, found: int) -> None:
        """Refuse images with another number of channels."""
        channels = self.groups * (self.rows if self.transposed else self.cols)
        if found != channels:
            raise ShapeError(f"The layer takes images with {channels} channels, got {found}.")

    def check_size(self, spatial: Shape) -> None:
        """Refuse an image on which the kernel's promise does not hold.

        These are images of another size than the kernel is made for, and circles that the stride does not divide.
        """
        if self.size and spatial != self.size:
            raise ShapeError(
                f"The kernel of this layer is made for images of size {self.size}, got {spatial}; build the layer with "
                f"in_size={spatial}, or use a method for every size, such as AOC()."
            )
        if self.series and min(self._lengths(spatial)) < 1:
            side = "less" if self.transposed else "more"
            raise ShapeError(
                f"Kernel {self.taps} with dilation {self.dilation} and padding {self.padding} leaves nothing of an "
                f"image of size {spatial}; use a larger image, or {side} padding."
            )
        if self.mode is not Padding.CIRCULAR:
            return
        padding = same_padding(self.taps, self.dilation) if self.series else self.padding
        circle = self._lengths(spatial) if self.transposed else spatial
        for n, s, sides in zip(circle, self.stride, padding, strict=True):
            if max(sides) > n:
                raise ShapeError(
                    f"Circular padding {padding} of kernel {self.taps} would wrap an image of size {circle} more "
                    f"than once; use an image of at least {max(sides)} on that axis, a smaller kernel, or zero padding."
                )
            # Of a transposed convolution the output padding was checked at first.
            if n % s and any(sides) and not self.transposed:
                raise ShapeError(
                    f"A circular convolution with stride {self.stride} is only bounded by its kernel on sizes that the "
                    f"stride divides, got {spatial}; crop or pad the image, or use padding_mode='zeros'."
                )

    def operator(self, weight: Inexact[Tensor, "..."], in_shape: Shape) -> LinearOperator:
        """The linear map of the weight on one input of `in_shape`, without batch axis."""
        # Lists are shapes too, but operators are compared by theirs.
        in_shape = tuple(in_shape)
        channels = self.groups * (self.rows if self.transposed else self.cols)
        if not in_shape or (in_shape[0] if self.taps else in_shape[-1]) != channels:
            where = f"({channels}, *size)" if self.taps else f"(..., {channels})"
            raise ShapeError(f"The layer takes one input of shape {where}, without batch axis, got {tuple(in_shape)}.")
        if self.series:
            return self._series(weight, in_shape)
        if not self.taps:
            return Dense(weight)
        spatial = in_shape[1:]
        if self.transposed and not self.wraps_outputs:
            padding = tuple(left for left, _ in self.padding)
            return ConvTranspose(weight, spatial, self.stride, padding, self.output_padding, self.dilation, self.groups)
        self.check_size(spatial)
        if self.transposed:
            circle = self._lengths(spatial)
            return Conv(weight, circle, self.stride, self.padding, self.dilation, self.groups, self.mode).T
        if self.size:
            return CircularConv(weight, self.groups)
        return Conv(weight, spatial, self.stride, self.padding, self.dilation, self.groups, self.mode)

    @property
    def _added(self) -> tuple[tuple[int, int], ...]:
        """The padding beyond the one with which a term of the series keeps the size; negative where it is less."""
        pairs = zip(self.padding, same_padding(self.taps, self.dilation), strict=True)
        return tuple((left - own, right - own) for (left, right), (own, _) in pairs)

    def _lengths(self, spatial: Shape) -> Shape:
        """The size of an image that a series makes, before a stride leaves pixels out; what torch's layer makes."""
        added = [sum(sides) - d * (k - 1) for sides, d, k in zip(self.padding, self.dilation, self.taps, strict=True)]
        if not self.transposed:
            return tuple(n + more for n, more in zip(spatial, added, strict=True))
        axes = zip(spatial, self.stride, added, self.output_padding, strict=True)
        return tuple((n - 1) * s + 1 - more + rest for n, s, more, rest in axes)

    def before_series(self, x: Images) -> Images:
        """The images that the series acts on: with zeros for missing channels and beyond the border."""
        axes = len(self.taps)
        x = resize_groups(x, axes, self.groups, max(self.rows, self.cols))
        if not self.transposed:
            return resize_images(x, tuple((max(a, 0), max(b, 0)) for a, b in self._added))
        ends = zip(self._added, self.output_padding, strict=True)
        return resize_images(
            spread_out(x, self.stride), tuple((max(-a, 0), max(-b, 0) + rest) for (a, b), rest in ends)
        )

    def behind_series(self, x: Images) -> Images:
        """What is kept of the images that the series gives: the adjoint of the above for the adjoint layer."""
        axes = len(self.taps)
        if self.transposed:
            x = resize_images(x, tuple((-max(a, 0), -max(b, 0)) for a, b in self._added))
            return resize_groups(x, axes, self.groups, self.cols)
        x = keep_every(resize_images(x, tuple((min(a, 0), min(b, 0)) for a, b in self._added)), self.stride)
        return resize_groups(x, axes, self.groups, self.rows)

    def _series(self, weight: Inexact[Tensor, "..."], in_shape: Shape) -> LinearOperator:
        self.check_size(in_shape[1:])
        # Numbered from one, so that zeros are the pixels that come from nowhere.
        before = self.before_series(1 + torch.arange(math.prod(in_shape)).reshape(in_shape)) - 1
        middle = tuple(before.shape)
        behind = self.behind_series(torch.arange(math.prod(middle)).reshape(middle))
        one, sides = (1,) * len(self.taps), same_padding(self.taps, self.dilation)
        # The adjoint of the exponential of a skew kernel is that of its negative.
        kernel = -weight if self.transposed else weight
        turn = ConvExponential(Conv(kernel, middle[1:], one, sides, self.dilation, self.groups, self.mode), self.series)
        found: LinearOperator = turn if middle == in_shape else turn @ Index(before, in_shape)
        return found if tuple(behind.shape) == middle else Index(behind, middle) @ found


def geometry_of(module: nn.Module) -> Geometry:
    """The geometry of the weight of nn.Linear and of convolutions of all kinds; anything else is refused."""
    if isinstance(module, nn.Linear):
        return Geometry(1, module.out_features, module.in_features)
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        transposed, groups = module.transposed, module.groups
        sides = module.out_channels // groups, module.in_channels // groups
        rows, cols = reversed(sides) if transposed else sides
        _check_axes(module)
        walk = (module.kernel_size, module.stride, _sides(module), module.dilation, Padding(module.padding_mode))
        return Geometry(groups, rows, cols, *walk, transposed, module.output_padding if transposed else ())
    raise UnsupportedError(
        f"{type(module).__name__} has no weight with a known meaning as an operator; nn.Linear, nn.Conv2d, "
        "nn.ConvTranspose2d and their like in one and three dimensions have."
    )


def _check_axes(module: nn.modules.conv._ConvNd) -> None:
    """Refuse what torch refuses at the first forward, if at all: other numbers of axes, steps of nothing."""
    axes = 1 + [isinstance(module, pair) for pair in zip(CONVOLUTIONS, TRANSPOSED, strict=True)].index(True)
    padding = () if isinstance(module.padding, str) else (("padding", module.padding, 0),)
    for name, values, least in (
        ("kernel_size", module.kernel_size, 1), ("stride", module.stride, 1), ("dilation", module.dilation, 1), *padding
    ):  # fmt: skip
        if len(values) != axes or any(int(n) != n or n < least for n in values):
            numbers = "whole number" if axes == 1 else f"{axes} whole numbers"
            raise ShapeError(
                f"{name} of {type(module).__name__} needs {numbers} of at least {least}, one for each axis, got "
                f"{tuple(values)}."
            )


def _sides(module: nn.modules.conv._ConvNd) -> tuple[tuple[int, int], ...]:
    if module.padding == "valid":
        return ((0, 0),) * len(module.kernel_size)
    if module.padding == "same":
        spare = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in spare)
    return tuple((int(p), int(p)) for p in module.padding)
