"""Products computed in more digits than their derivatives need.

Derivatives are plain operations of what they were given, so further derivatives are theirs.
"""

from typing import Any, final

import torch
from torch import Tensor


@final
class Gram(torch.autograd.Function):
    """W'W in `dtype`; the derivative in the type of W, by one product instead of two: W (G + G')."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, dtype: torch.dtype) -> Tensor:
        """W'W."""
        wide = tall.to(dtype)
        return wide.mT @ wide

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        """Keeps W."""
        ctx.kind = output.dtype
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """V'W + W'V."""
        (tall,) = ctx.saved_tensors
        half = tall.mT @ tangents[0]
        return (half + half.mT).to(ctx.kind)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """W (G + G')."""
        (tall,) = ctx.saved_tensors
        inner = gradients[0].to(tall.dtype)
        return tall @ (inner + inner.mT), None


@final
class Step(torch.autograd.Function):
    """(X, W'W) with X = 3/2 c W - 1/2 c^3 W (W'W): a Björck step from c W, three products backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The step, and the Gram matrix it came from."""
        gram = tall.mT @ tall
        return torch.baddbmm(tall, tall, gram, beta=1.5 * scale, alpha=-0.5 * scale**3), gram

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        """Keeps W and W'W, which is an output because derivatives of the derivative go through it."""
        tall, ctx.scale = inputs
        ctx.save_for_backward(tall, output[1])
        ctx.save_for_forward(tall, output[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        """3/2 c V - 1/2 c^3 (V (W'W) + W S) and S = V'W + W'V."""
        tall, gram = ctx.saved_tensors
        half = tall.mT @ tangents[0]
        both = half + half.mT
        cubic = tangents[0] @ gram + tall @ both
        return 1.5 * ctx.scale * tangents[0] - 0.5 * ctx.scale**3 * cubic, both

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """3/2 c G - 1/2 c^3 (G (W'W) + W (W'G + G'W)), and what comes from the Gram matrix."""
        tall, gram = ctx.saved_tensors
        out, inner = gradients
        linear, cubic = 1.5 * ctx.scale, -0.5 * ctx.scale**3
        inner = torch.baddbmm(inner, tall.mT, out, alpha=cubic)
        direct = torch.baddbmm(out, out, gram, beta=linear, alpha=cubic)
        return torch.baddbmm(direct, tall, inner + inner.mT), None


@final
class Product(torch.autograd.Function):
    """L R in the type of R, which has no fewer digits than L, rounded to `dtype`; the derivative in the type of L."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        """L R."""
        return (left.to(right.dtype) @ right).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
        """Keeps L and R."""
        ctx.kind = output.dtype
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """V R + L U."""
        left, right = ctx.saved_tensors
        return (tangents[0] @ right.to(left.dtype) + left @ tangents[1].to(left.dtype)).to(ctx.kind)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """G R' and L'G."""
        left, right = ctx.saved_tensors
        out = gradients[0].to(left.dtype)
        return out @ right.to(left.dtype).mT, (left.mT @ out).to(right.dtype), None
