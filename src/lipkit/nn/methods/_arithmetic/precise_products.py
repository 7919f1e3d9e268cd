"""Products computed in more digits than their derivatives need."""

import torch
from torch import Tensor

from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative


def gram_of(tall: Tensor, dtype: torch.dtype) -> Tensor:
    """W'W in `dtype`; the derivative in the type of W, by one product instead of two: W (G + G')."""
    return _gram(tall, dtype)


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """L R in the type of R, which has no fewer digits than L, rounded to `dtype`; the derivative in the type of L."""
    return _product(left, right, dtype)


def _gram_forward(tall: Tensor, dtype: torch.dtype) -> Tensors:
    wide = tall.to(dtype)
    return (torch.bmm(wide.mH, wide),)


def _gram_backward(inputs: tuple[Tensor, torch.dtype], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    tall = inputs[0]
    inner = gradients[0].to(tall.dtype)
    return (torch.bmm(tall, inner + inner.mH),)


def _gram_jvp(inputs: tuple[Tensor, torch.dtype], _: Tensors, tangents: Tensors) -> Gradients:
    tall, dtype = inputs
    half = torch.bmm(tall.mH, tangents[0])
    return ((half + half.mH).to(dtype),)


def _product_forward(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensors:
    return (torch.bmm(left.to(right.dtype), right).to(dtype),)


def _product_backward(inputs: tuple[Tensor, Tensor, torch.dtype], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    left, right = inputs[:2]
    out = gradients[0].to(left.dtype)
    return torch.bmm(out, right.to(left.dtype).mH), torch.bmm(left.mH, out).to(right.dtype)


def _product_jvp(inputs: tuple[Tensor, Tensor, torch.dtype], _: Tensors, tangents: Tensors) -> Gradients:
    left, right, dtype = inputs
    fixed = torch.bmm(tangents[0], right.to(left.dtype))
    return (torch.baddbmm(fixed, left, tangents[1].to(left.dtype)).to(dtype),)


_gram = with_derivative(_gram_forward, _gram_backward, _gram_jvp)
_product = with_derivative(_product_forward, _product_backward, _product_jvp, tensors=2)
