"""The exponential series of a convolution, applied term by term: a chain of small convolutions."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape, promote
from lipkit.linops.conv import CONV, Conv
from lipkit.linops.elementary import Reshape
from lipkit.linops.padding import Padding, Sides, pad


@final
@dataclass(frozen=True, eq=False)
class ConvExponential(LinearOperator):
    """sum over j <= degree of A^j / j!, for a convolution A from images to images of the same shape.

    It is `series`, the same sum written with other operators. If the kernel is skew (transposed taps in the opposite
    order are its negative) and padded alike on both sides, with zeros or around a circle, A is a skew matrix and this
    is nearly an orthogonal one (`norms/convolutions/skew_series.py`).
    Cost: `degree` convolutions.
    """

    conv: Conv
    degree: int

    def __post_init__(self) -> None:
        if self.conv.in_shape != self.conv.out_shape:
            raise ShapeError(
                f"Only a convolution that keeps the shape of images has powers, got {self.conv}; use as many outputs "
                "as inputs, stride 1 and padding dilation (kernel - 1) / 2."
            )
        if self.degree < 1:
            raise ArgumentError(f"ConvExponential.degree must be at least 1, got {self.degree}.")

    @property
    def in_shape(self) -> Shape:
        return self.conv.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.conv.out_shape

    @property
    def series(self) -> LinearOperator:
        """I + A (I + A/2 (I + A/3 (...)))."""
        one = Reshape(self.in_shape, self.in_shape)
        found: LinearOperator = one
        for j in range(self.degree, 0, -1):
            found = one + (self.conv * (1 / j)) @ found
        return found

    def _apply(self, x: Tensor) -> Tensor:
        # A real image meets a complex kernel.
        x = promote(self.conv.weight, x)[1]
        found = x
        for j in range(self.degree, 0, -1):
            found = x + self.conv._apply(found) / j
        return found

    def _adjoint(self, y: Tensor) -> Tensor:
        y = promote(self.conv.weight, y)[1]
        found = y
        for j in range(self.degree, 0, -1):
            found = y + self.conv._adjoint(found) / j
        return found


def same_padding(taps: Shape, dilation: Shape) -> Sides:
    """The padding with which a kernel with a central tap keeps the size of images."""
    return tuple((d * (k - 1) // 2, d * (k - 1) // 2) for k, d in zip(taps, dilation, strict=True))


def exponentiate(x: Tensor, weight: Tensor, dilation: list[int], groups: int, circular: bool, degree: int) -> Tensor:
    """`ConvExponential` on images, batched or not, in the type of both, for kernels with a central tap."""
    axes = weight.ndim - 2
    sides = same_padding(tuple(weight.shape[2:]), tuple(dilation))
    inside = [0] * axes if circular else [left for left, _ in sides]
    found = x
    for j in range(degree, 0, -1):
        before = pad(found, sides, Padding.CIRCULAR) if circular else found
        moved = CONV[axes](before, weight, None, 1, inside, dilation, groups)
        found = torch.add(x, moved, alpha=1 / j)
    return found


# One operation while a model is read, so that the operator is found again; split up by torch everywhere else.
_LIBRARY = torch.library.Library("lipkit", "FRAGMENT")
_LIBRARY.define(
    "convolution_exponential(Tensor x, Tensor weight, int[] dilation, int groups, bool circular, int degree) -> Tensor"
)
_LIBRARY.impl("convolution_exponential", exponentiate, "CompositeImplicitAutograd")


def _exponentiate_batches(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *how: Any
) -> tuple[Tensor, int]:
    axis, of_weight = in_dims[:2]
    images = [x] * info.batch_size if axis is None else x.movedim(axis, 0)
    weights = [weight] * info.batch_size if of_weight is None else weight.movedim(of_weight, 0)
    return torch.stack([exponentiate(a, b, *how) for a, b in zip(images, weights, strict=True)]), 0


torch.library.register_vmap("lipkit::convolution_exponential", _exponentiate_batches, lib=_LIBRARY)
