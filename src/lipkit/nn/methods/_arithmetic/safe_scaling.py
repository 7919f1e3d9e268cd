"""Bringing free numbers to a size in which nothing overflows, underflows or loses its gradient."""

import math
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.methods._arithmetic.products import gram_of, with_signature
from lipkit.nn.methods._arithmetic.transforms import plainly

# Free numbers all smaller than this count as small, not as a direction: dividing by their size would give gradients
# beyond the range of float32.
LEAST = 2.0**-60


def contracted(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf); smaller still where all entries are below `LEAST`."""
    scaled = levelled(tall)
    return scaled / size_of(gram_of(scaled, scaled.dtype))


def levelled(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / m with m its largest entry, or `LEAST` if that is larger; a constant for autograd: it cancels afterwards."""
    return tall / largest(tall)


def largest(tall: Float[Tensor, "batch rows cols"], least: float = LEAST) -> Float[Tensor, "batch 1 1"]:
    """The largest entry, or `least` if that is larger; a constant for autograd."""
    return torch.linalg.vector_norm(tall.detach(), math.inf, (-2, -1), keepdim=True).clamp(min=least)


def size_of(gram: Float[Tensor, "batch cols cols"]) -> Float[Tensor, "batch 1 1"]:
    """b >= ||W|| of a Gram matrix W'W: b^2 = min(||W'W||_F, ||W'W||_inf); at least 1, as with a largest entry of 1."""
    return sizes_of(gram)[0].sqrt()


def sizes_of(
    gram: Float[Tensor, "batch cols cols"],
) -> tuple[Float[Tensor, "batch 1 1"], Float[Tensor, "batch 1 1"], Float[Tensor, "batch cols 1"]]:
    """The b^2 of `size_of`, and what it was chosen from: ||W'W||_F and the row sums."""
    whole = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True)
    rows = torch.linalg.vector_norm(gram, 1, -1, keepdim=True)
    return torch.minimum(whole, rows.amax(-2, keepdim=True)).clamp(min=1.0), whole, rows


def capped(x: Float[Tensor, "batch rows cols"], most: float) -> Float[Tensor, "batch rows cols"]:
    """x min(1, most / ||x||_F), for most >= 1."""
    if plainly():
        return _Capped.forward(x, most)[0]
    return (_Capped if torch.compiler.is_compiling() else _ForwardCapped).apply(x, most)[0]


class _Capped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(x: Tensor, most: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        unit = largest(x, 1.0)
        small = x / unit
        # Squares, because a norm has no second derivative at zero. Below 1 they are only where ||x|| < 1 <= most.
        square = small.square().sum((-2, -1), keepdim=True).clamp(min=1.0)
        # unit min(1, most / ||x||): numbers in range, those of the derivative too.
        factor = torch.minimum(square.rsqrt() * most, unit)
        return small * factor, factor, factor < unit, unit

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
        ctx.square = inputs[1] ** 2
        # The factor is an output because derivatives of the derivative go through it, the other two are constants.
        _, _, over, unit = output
        ctx.mark_non_differentiable(over, unit)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None]:
        # With y = f z and f = most / ||z|| where x is too large: df = -f^2 <y, dz> / most^2.
        found, factor, over, unit = ctx.saved_tensors
        out, by_factor, *_ = gradients
        if out is None:
            # Only where derivatives of derivatives need the other alone.
            out = torch.zeros_like(found)
        along = dot(out, found)
        along = along if by_factor is None else along + by_factor * factor
        return torch.addcmul(out, found, along * over, value=-1 / ctx.square) * factor / unit, None


@final
class _ForwardCapped(_Capped):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, None, None]:
        found, factor, over, unit = ctx.saved_tensors
        change = tangents[0] / unit
        along = dot(change, found) * over * (-1 / ctx.square)
        return torch.addcmul(change, found, along) * factor, along * factor.square(), None, None


def dot(left: Float[Tensor, "batch rows cols"], right: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch 1 1"]:
    """<L, R>, the sum of the products of entries."""
    return (left * right).sum((-2, -1), keepdim=True)
