"""Products computed in more digits than their derivatives need.

Derivatives are plain operations of what they were given, so further derivatives are theirs. Compilers refuse functions
with a derivative for forward mode, so the classes that have one are used outside of compiled programs only; where no
class will do, the forward pass itself is differentiated.
"""

import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from lipkit.nn.methods._arithmetic.transforms import plainly


def gram_of(tall: Tensor, dtype: torch.dtype) -> Tensor:
    """W'W in `dtype`; the derivative in the type of W, by one product instead of two: W (G + G')."""
    if plainly():
        return _Gram.forward(tall, dtype)
    return (_Gram if torch.compiler.is_compiling() else _ForwardGram).apply(tall, dtype)


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """L R in the type of R, which has no fewer digits than L, rounded to `dtype`; the derivative in the type of L."""
    if plainly():
        return _Product.forward(left, right, dtype)
    return (_Product if torch.compiler.is_compiling() else _ForwardProduct).apply(left, right, dtype)


def with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that knows its signature: torch asks for it at every call, and finding it out takes 13 us."""
    function.__dict__["__signature__"] = inspect.signature(function)
    return function


def of_step(scale: float, room: float = 1.0) -> tuple[float, float]:
    """(a, b) of a W + b W (W'W): a Björck step from c W, times r, for c = `scale` and r = `room`."""
    return 1.5 * room * scale, -0.5 * room * scale**3


def pulled(
    tall: Tensor, inner: Tensor, factors: tuple[float, float], out: Tensor, by_inner: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Back through a W + b W M with M = W'W and (a, b) = `factors`: D and N, of which W receives D + W (N + N')."""
    linear, cubic = factors
    # A first argument that counts for nothing makes it a product and its factor in one launch.
    start, weight = (inner, 0) if by_inner is None else (by_inner, 1)
    more = torch.baddbmm(start, tall.mT, out, beta=weight, alpha=cubic)
    return torch.baddbmm(out, out, inner, beta=linear, alpha=cubic), more


def pushed(tall: Tensor, inner: Tensor, factors: tuple[float, float], change: Tensor) -> tuple[Tensor, Tensor]:
    """Forward through a W + b W M: how it moves, and M = W'W."""
    linear, cubic = factors
    half = torch.bmm(tall.mT, change)
    both = half + half.mT
    direct = torch.baddbmm(change, change, inner, beta=linear, alpha=cubic)
    return torch.baddbmm(direct, tall, both, alpha=cubic), both


class _Gram(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(tall: Tensor, dtype: torch.dtype) -> Tensor:
        wide = tall.to(dtype)
        return torch.bmm(wide.mT, wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        tall, ctx.kind = inputs
        ctx.save_for_backward(tall)
        ctx.save_for_forward(tall)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tall,) = ctx.saved_tensors
        inner = gradients[0].to(tall.dtype)
        return torch.bmm(tall, inner + inner.mT), None


@final
class _ForwardGram(_Gram):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (tall,) = ctx.saved_tensors
        half = torch.bmm(tall.mT, tangents[0])
        return (half + half.mT).to(ctx.kind)


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.bmm(left.to(right.dtype), right).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        left, right, ctx.kind = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        out = gradients[0].to(left.dtype)
        return torch.bmm(out, right.to(left.dtype).mT), torch.bmm(left.mT, out).to(right.dtype), None


@final
class _ForwardProduct(_Product):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        left, right = ctx.saved_tensors
        fixed = torch.bmm(tangents[0], right.to(left.dtype))
        return torch.baddbmm(fixed, left, tangents[1].to(left.dtype)).to(ctx.kind)
