"""The same operator in the form that is cheapest to apply many times, its tensors held fixed."""

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import final

from jaxtyping import Inexact
from torch import Tensor

from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Shape, Sum
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.composites import StatedRounding, factors, multiply_factors, rebuild
from lipkit.linops.conv import CONV, Conv
from lipkit.linops.elementary import Diagonal
from lipkit.linops.padding import Padding
from lipkit.linops.sweep import Sweep


@final
@dataclass(frozen=True, eq=False)
class BothWays(LinearOperator):
    """A convolution of stride 1 with a copy of its kernel turned around, by which its adjoint is a convolution too.

        A* y = conv(y, mirrored),   mirrored[c, o, t] = conj(weight[o, c, -t]),   padding e - 1 - p for extents e.

    On a CPU, convolutions are 1.2 to 2 times faster than transposed ones. The sums have the same terms.
    """

    conv: Conv
    mirrored: Inexact[Tensor, "c_in c_out *kernel"]

    @property
    def in_shape(self) -> Shape:
        return self.conv.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.conv.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.conv._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        pad = tuple(e - 1 - left for e, (left, _) in zip(self.conv.extents, self.conv.padding, strict=True))
        return CONV[len(pad)](y, self.mirrored.to(y.dtype), None, self.conv.stride, pad, self.conv.dilation)


@singledispatch
def prepare(op: LinearOperator) -> LinearOperator:
    """`op` with the scales of channels and numbers beside a convolution multiplied into its kernel.

    Convolutions of stride 1 get a mirrored copy of the kernel (`BothWays`). Tensors are copies: not live, no gradient.
    Every entry of the result has at most as many rounding errors behind it, relative to the same absolute values, as
    `depth` and `magnitude` say of `op`: products of the same numbers, in another order.
    """
    return op


@prepare.register(Conv)
def _conv(op: Conv) -> LinearOperator:
    sides = zip(op.extents, op.padding, strict=True)
    plain = op.mode is Padding.ZEROS and op.groups == 1 and set(op.stride) == {1}
    if not plain or any(left != right or left > e - 1 for e, (left, right) in sides):
        return op
    axes = tuple(range(2, op.weight.ndim))
    return BothWays(op, op.weight.detach().conj().transpose(0, 1).flip(axes).resolve_conj().contiguous())


rebuild(prepare, composites=(Adjoint, Scaled, StatedRounding, Sum, Sweep))


@prepare.register(Compose)
def _compose(op: Compose) -> LinearOperator:
    merged = factors(multiply_factors(factors(op), _fold_scale))
    result = prepare(merged[0])
    for factor in merged[1:]:
        result = Compose(result, prepare(factor))
    return result


@prepare.register(BatchNorm)
def _batch_norm(op: BatchNorm) -> LinearOperator:
    return op.diagonal


def _fold_scale(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """One operator for two neighbours of a product, or None."""
    match outer, inner:
        case (Diagonal() | BatchNorm(), Conv()) if (scale := _of_channels(outer)) is not None:
            return replace(inner, weight=inner.weight * scale.reshape(-1, *(1,) * (inner.weight.ndim - 1)))
        case (Conv(), Diagonal() | BatchNorm()) if outer.groups == 1 and (scale := _of_channels(inner)) is not None:
            return replace(outer, weight=outer.weight * scale.reshape(-1, *(1,) * (outer.weight.ndim - 2)))
        case (Diagonal() | BatchNorm(), Diagonal() | BatchNorm()):
            return Diagonal(_diagonal(outer).scale * _diagonal(inner).scale, outer.shape)
        case _:
            return None


def _diagonal(op: Diagonal | BatchNorm) -> Diagonal:
    return op.diagonal if isinstance(op, BatchNorm) else op


def _of_channels(op: Diagonal | BatchNorm) -> Tensor | None:
    """The scale of each channel, the first axis of an image, if there is only one; a single number serves them all."""
    scale = _diagonal(op).scale
    by_channel = scale.reshape((1,) * (len(op.shape) - scale.ndim) + tuple(scale.shape)).flatten(1)
    return by_channel[:, 0] if bool((by_channel == by_channel[:, :1]).all()) else None
