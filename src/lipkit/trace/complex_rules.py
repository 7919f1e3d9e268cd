"""Operations on complex values: Fourier transforms, products with constants, parts, moves, absolute values.

All of them are linear over the real numbers in what depends on the input, except the absolute value and the product of
two such values.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from lipkit.linops import Index, select
from lipkit.trace.complex_values import (
    ON_PARTS,
    ComplexRule,
    Paired,
    Result,
    Value,
    linear_on_pairs,
    moves_on_pairs,
    rows_on_pairs,
    with_zeros,
)
from lipkit.trace.network import Builder, Ref, Refusal
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.rules.arithmetic import combination
from lipkit.trace.rules.products.elementwise_binary import product

aten = torch.ops.aten


def lower_complex(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """Rows for an operation that takes or gives complex values that depend on the input; a `Refusal` if it has none.

    Args:
        like: The tensors that torch gives, for their shapes and types.
    """
    if op not in COMPLEX_RULES:
        why = _JUMPS.get(op, "has no rule for complex numbers")
        raise Refusal(why, f"{ON_PARTS}, or write it on two real tensors")
    return COMPLEX_RULES[op](b, op, args, kwargs, like)


def _same(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """The value itself, in another type; an imaginary part of zero is put in, or left out with its numbers."""
    del op, kwargs
    x: Value = args[0]
    if isinstance(x, Paired):
        if like.is_complex():
            return x
        return b.reshape(b.linear(select(x.parts.shape, (..., slice(0, 1))), x.parts), x.shape)
    return Paired(with_zeros(b, x))


def _view_as_real(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    del b, op, kwargs, like
    return args[0].parts


def _view_as_complex(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    del b, op, kwargs, like
    return Paired(args[0])


def _abs(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """|z| is the l2 norm of the pair, of constant 1."""
    del op, kwargs, like
    x: Paired = args[0]
    return b.reshape(b.node(VectorNorm(x.parts.shape, 2.0), x.parts), x.shape)


def _mul(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """The product with a constant is linear; that of two values has finite constants on a bounded region only."""
    x, y = args
    if not (isinstance(x, Ref | Paired) and isinstance(y, Ref | Paired)):
        return linear_on_pairs((0 if isinstance(x, Ref | Paired) else 1,))(b, op, args, kwargs, like)
    if isinstance(x, Ref):
        x, y = y, x
    # Two real values have a real product.
    assert isinstance(x, Paired)
    if isinstance(y, Ref):
        return Paired(product(b, x.parts, b.reshape(y, (*y.shape, 1))))
    real, imaginary = (b.linear(select(x.parts.shape, (..., slice(k, k + 1))), x.parts) for k in (0, 1))
    # (a + ib)(c + id) = a (c, d) + b (-d, c) as pairs.
    return Paired(combination(b, [(product(b, real, y.parts), 1), (product(b, imaginary, _turned(b, y.parts)), 1)]))


def _turned(b: Builder, pairs: Ref) -> Ref:
    """i z as pairs: (-d, c) for (c, d)."""
    at = torch.arange(math.prod(pairs.shape)).reshape(pairs.shape)
    none = torch.full_like(at[..., 0], -1)
    first, second = torch.stack([at[..., 1], none], -1), torch.stack([none, at[..., 0]], -1)
    return b.affine([(Index(first, pairs.shape) * -1.0, pairs), (Index(second, pairs.shape), pairs)])


_ON_TENSORS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.rsub.Scalar: aten.rsub.Tensor,
}


def _shift(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """The sum with a number, which may have a factor."""
    factor = dict(zip(("alpha",), args[2:], strict=False))
    return _PAIR(b, _ON_TENSORS[op], args[:2], {**factor, **kwargs}, like)


def _einsum(b: Builder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], like: Any) -> Result:
    """Linear in one of its operands, as products of matrices are."""
    operands = args[1] if op is aten.einsum.default else args[:2]
    at = [i for i, value in enumerate(operands) if isinstance(value, Ref | Paired)]
    if len(at) > 1:
        raise Refusal("multiplies complex values that both depend on the input", "use * and sums, or constant factors")
    if op is not aten.einsum.default:
        return linear_on_pairs((at[0],))(b, op, args, kwargs, like)
    # The equation is the first leaf, the operands are the next ones.
    return rows_on_pairs(b, op, (args[0], list(operands)), {}, {1 + at[0]}, None, like)


_FIRST, _PAIR, _MOVED = linear_on_pairs((0,)), linear_on_pairs((0, 1)), moves_on_pairs((0,))
_TRANSFORMS = (
    aten.fft_fft.default, aten.fft_ifft.default, aten.fft_rfft.default, aten.fft_irfft.default, aten.fft_hfft.default,
    aten.fft_ihfft.default, aten.fft_fft2.default, aten.fft_ifft2.default, aten.fft_rfft2.default,
    aten.fft_irfft2.default, aten.fft_fftn.default, aten.fft_ifftn.default, aten.fft_rfftn.default,
    aten.fft_irfftn.default, aten.fft_hfft2.default, aten.fft_ihfft2.default, aten.fft_hfftn.default,
    aten.fft_ihfftn.default, aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default,
)  # fmt: skip
_MOVES = (
    aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.expand.default, aten.permute.default,
    aten.transpose.int, aten.mT.default, aten.t.default, aten.slice.Tensor, aten.select.int, aten.narrow.default,
    aten.index_select.default, aten.index.Tensor, aten.roll.default, aten.flip.default, aten.movedim.intlist,
    aten.movedim.int, aten.repeat.default, aten.pad.default, aten.constant_pad_nd.default, aten.split.Tensor,
    aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int, aten.tril.default, aten.triu.default,
)  # fmt: skip
_CONVOLUTIONS = (
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv1d.padding, aten.conv2d.padding,
    aten.conv3d.padding, aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
)  # fmt: skip
_SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default)
_PARTS = (
    aten.real.default, aten.imag.default, aten.conj.default, aten._conj.default, aten.conj_physical.default,
    aten._conj_physical.default, aten.neg.default,
)  # fmt: skip

COMPLEX_RULES: Mapping[OpOverload, ComplexRule] = {
    **dict.fromkeys((*_TRANSFORMS, *_SUMS, *_PARTS), _FIRST),
    **dict.fromkeys(_MOVES, _MOVED),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.mul.Scalar), _FIRST),
    # The weight is constant; the bias, which comes third, is added.
    **dict.fromkeys((aten.linear.default, *_CONVOLUTIONS), linear_on_pairs((0, 2))),
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor, aten.complex.default), _PAIR),
    **dict.fromkeys(_ON_TENSORS, _shift),
    **dict.fromkeys((aten.slice_scatter.default, aten.select_scatter.default), moves_on_pairs((0, 1))),
    **dict.fromkeys((aten.cat.default, aten.stack.default), _MOVED),
    aten.where.self: moves_on_pairs((1, 2)),
    aten.index_put.default: linear_on_pairs((0, 2)),
    **dict.fromkeys(
        (
            aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default,
            aten.clone.default, aten.contiguous.default, aten.alias.default, aten.detach.default,
            aten.positive.default, aten.resolve_conj.default, aten.resolve_neg.default,
        ),
        _same,
    ),
    **dict.fromkeys((aten.mul.Tensor, aten.multiply.Tensor), _mul),
    **dict.fromkeys(
        (aten.einsum.default, aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default), _einsum
    ),
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
    aten.abs.default: _abs,
}  # fmt: skip

_JUMPS: Mapping[OpOverload, str] = {
    aten.angle.default: "jumps by a full turn and has no limit at zero, so an angle has no Lipschitz constant",
    aten.sgn.default: "has no limit at zero, so it has no Lipschitz constant",
}
