"""Products computed in more digits than their derivatives need.

Derivatives are plain operations of what they were given, so further derivatives are theirs. Compilers refuse functions
with a derivative for forward mode, so the classes that have one are used outside of compiled programs only; where no
class will do, the forward pass itself is differentiated.
"""

from typing import Any, final

import torch
from torch import Tensor

from lipkit.nn.methods._transforms import plainly


def gram_of(tall: Tensor, dtype: torch.dtype) -> Tensor:
    """W'W in `dtype`; the derivative in the type of W, by one product instead of two: W (G + G')."""
    if plainly():
        return _Gram.forward(tall, dtype)
    return (_Gram if torch.compiler.is_compiling() else _ForwardGram).apply(tall, dtype)


def step(tall: Tensor, scale: float) -> Tensor:
    """3/2 c W - 1/2 c^3 W (W'W): a Björck step from c W, three products backward."""
    if plainly():
        return _Step.forward(tall, scale)[0]
    return (_Step if torch.compiler.is_compiling() else _ForwardStep).apply(tall, scale)[0]


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """L R in the type of R, which has no fewer digits than L, rounded to `dtype`; the derivative in the type of L."""
    if plainly():
        return _Product.forward(left, right, dtype)
    return (_Product if torch.compiler.is_compiling() else _ForwardProduct).apply(left, right, dtype)


class _Gram(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, dtype: torch.dtype) -> Tensor:
        wide = tall.to(dtype)
        return wide.mT @ wide

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        tall, ctx.kind = inputs
        ctx.save_for_backward(tall)
        ctx.save_for_forward(tall)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tall,) = ctx.saved_tensors
        inner = gradients[0].to(tall.dtype)
        return tall @ (inner + inner.mT), None


@final
class _ForwardGram(_Gram):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (tall,) = ctx.saved_tensors
        half = tall.mT @ tangents[0]
        return (half + half.mT).to(ctx.kind)


class _Step(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        inner = tall.mT @ tall
        return torch.baddbmm(tall, tall, inner, beta=1.5 * scale, alpha=-0.5 * scale**3), inner

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        tall, ctx.scale = inputs
        # The Gram matrix is an output because derivatives of the derivative go through it.
        ctx.save_for_backward(tall, output[1])
        ctx.save_for_forward(tall, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        tall, inner = ctx.saved_tensors
        out, more = gradients
        linear, cubic = 1.5 * ctx.scale, -0.5 * ctx.scale**3
        more = torch.baddbmm(more, tall.mT, out, alpha=cubic)
        direct = torch.baddbmm(out, out, inner, beta=linear, alpha=cubic)
        return torch.baddbmm(direct, tall, more + more.mT), None


@final
class _ForwardStep(_Step):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        tall, inner = ctx.saved_tensors
        half = tall.mT @ tangents[0]
        both = half + half.mT
        cubic = tangents[0] @ inner + tall @ both
        return 1.5 * ctx.scale * tangents[0] - 0.5 * ctx.scale**3 * cubic, both


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        return (left.to(right.dtype) @ right).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        left, right, ctx.kind = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        out = gradients[0].to(left.dtype)
        return out @ right.to(left.dtype).mT, (left.mT @ out).to(right.dtype), None


@final
class _ForwardProduct(_Product):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        left, right = ctx.saved_tensors
        return (tangents[0] @ right.to(left.dtype) + left @ tangents[1].to(left.dtype)).to(ctx.kind)
