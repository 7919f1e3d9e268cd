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


def step_factors(scale: float, room: float = 1.0) -> tuple[float, float]:
    """(a, b) of a W + b W (W'W): a Björck step from c W, times r, for c = `scale` and r = `room`."""
    return 1.5 * room * scale, -0.5 * room * scale**3


def pull_back(
    tall: Tensor, inner: Tensor, factors: tuple[float, float], out: Tensor, by_inner: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Back through a W + b W M with M = W'W and (a, b) = `factors`: D and N, of which W receives D + W (N + N')."""
    linear, cubic = factors
    # With beta = 0 the first argument is not read: a product and its factor in one launch.
    start, weight = (inner, 0) if by_inner is None else (by_inner, 1)
    more = torch.baddbmm(start, tall.mT, out, beta=weight, alpha=cubic)
    return torch.baddbmm(out, out, inner, beta=linear, alpha=cubic), more


def push_forward(tall: Tensor, inner: Tensor, factors: tuple[float, float], change: Tensor) -> tuple[Tensor, Tensor]:
    """Forward through a W + b W M: how it moves, and how M = W'W does."""
    linear, cubic = factors
    half = torch.bmm(tall.mT, change)
    both = half + half.mT
    direct = torch.baddbmm(change, change, inner, beta=linear, alpha=cubic)
    return torch.baddbmm(direct, tall, both, alpha=cubic), both


def _gram_forward(tall: Tensor, dtype: torch.dtype) -> Tensors:
    wide = tall.to(dtype)
    return (torch.bmm(wide.mT, wide),)


def _gram_backward(inputs: tuple[Tensor, torch.dtype], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    tall = inputs[0]
    inner = gradients[0].to(tall.dtype)
    return (torch.bmm(tall, inner + inner.mT),)


def _gram_jvp(inputs: tuple[Tensor, torch.dtype], _: Tensors, tangents: Tensors) -> Gradients:
    tall, dtype = inputs
    half = torch.bmm(tall.mT, tangents[0])
    return ((half + half.mT).to(dtype),)


def _product_forward(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensors:
    return (torch.bmm(left.to(right.dtype), right).to(dtype),)


def _product_backward(inputs: tuple[Tensor, Tensor, torch.dtype], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    left, right = inputs[:2]
    out = gradients[0].to(left.dtype)
    return torch.bmm(out, right.to(left.dtype).mT), torch.bmm(left.mT, out).to(right.dtype)


def _product_jvp(inputs: tuple[Tensor, Tensor, torch.dtype], _: Tensors, tangents: Tensors) -> Gradients:
    left, right, dtype = inputs
    fixed = torch.bmm(tangents[0], right.to(left.dtype))
    return (torch.baddbmm(fixed, left, tangents[1].to(left.dtype)).to(dtype),)


_gram = with_derivative(_gram_forward, _gram_backward, _gram_jvp)
_product = with_derivative(_product_forward, _product_backward, _product_jvp, tensors=2)
