"""Padding that repeats entries of the border, weighted so that norms are kept."""

import enum
from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.known_constants import Contraction
from lipkit.nn.core.round_down import round_down
from lipkit.nn.layers.pooling import Sizes, per_axis


class Border(enum.Enum):
    """The entries that stand beyond the end of a row a b c."""

    # c b | a b c | b a: mirrored at the last entry.
    REFLECT = "reflect"
    # b a | a b c | c b: mirrored behind the last entry.
    SYMMETRIC = "symmetric"
    # a a | a b c | c c.
    REPLICATE = "replicate"
    # b c | a b c | a b.
    CIRCULAR = "circular"

    def __str__(self) -> str:
        return self.value

    def places(self, length: int, padding: int) -> list[int]:
        """The entries of a row of `length` that make the padded one."""
        most = {Border.REFLECT: length - 1, Border.REPLICATE: padding if length else 0}.get(self, length)
        if padding > most:
            raise ShapeError(
                f"{self} padding of {padding} needs longer rows than {length}; pad by at most {most}, or in two layers."
            )
        wanted = range(-padding, length + padding)
        match self:
            case Border.REFLECT:
                return [length - 1 - abs(length - 1 - abs(j)) for j in wanted]
            case Border.SYMMETRIC:
                return [-1 - j if j < 0 else 2 * length - 1 - j if j >= length else j for j in wanted]
            case Border.REPLICATE:
                return [min(max(j, 0), length - 1) for j in wanted]
            case Border.CIRCULAR:
                return [j % length for j in wanted]


@final
class BorderPad(Contraction):
    """Each entry over the root of its number of copies, then copied: |y| = |x|, so a convolution behind keeps its norm.

    Plain padding with border entries has norm 2^(1/2) an axis (reflect, symmetric, circular) or (1 + padding)^(1/2)
    (replicate), which no kernel can undo; `lipkit.nn.Conv2d` refuses it. The copies of an entry here have together its
    own norm, so the columns of this map are orthonormal. The price: entries that are repeated count less inside too,
    by 2^(-1/2) for each axis. Convolve what comes out with padding=0.
    Guarantee: constant 1, and an isometry up to the rounding of weights. Cost: a product and a gather for each axis.
    Reference: ours.

    Args:
        padding: Entries added at both ends, one number for all axes or one for each.
        border: Which entries are repeated.
        dims: Number of trailing axes that are padded.
    """

    def __init__(self, padding: Sizes, border: Border = Border.SYMMETRIC, dims: int = 2) -> None:
        super().__init__()
        if dims < 1:
            raise ArgumentError(f"BorderPad.dims must be at least 1, got {dims}.")
        self.padding = per_axis(padding, dims, "padding")
        if not isinstance(border, Border):
            raise ArgumentError(f"BorderPad.border must be a Border, such as Border.REFLECT, got {border!r}.")
        self.border = border
        self.dims = dims
        if min(self.padding) < 0:
            raise ArgumentError(f"BorderPad.padding must be at least 0, got {padding}.")

    def forward(self, x: Tensor) -> Tensor:
        """The padded input."""
        if x.ndim < self.dims:
            raise ShapeError(f"BorderPad pads {self.dims} axes, got shape {tuple(x.shape)}.")
        for axis, padding in zip(range(-self.dims, 0), self.padding, strict=True):
            if not padding:
                continue
            length = x.shape[axis]
            places = self.border.places(length, padding)
            at = torch.tensor(places, device=x.device)
            copies = torch.zeros(length, dtype=torch.float64, device=x.device).index_add(
                0, at, torch.ones_like(at, dtype=torch.float64)
            )
            weights = round_down(copies.rsqrt(), x.dtype).reshape(-1, *(1,) * (-axis - 1))
            x = (x * weights).index_select(axis, at)
        return x
