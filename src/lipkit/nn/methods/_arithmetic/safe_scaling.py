"""Bringing free numbers to a size in which nothing overflows, underflows or loses its gradient."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.methods._arithmetic.precise_products import gram_of

# Free numbers all smaller than this count as small, not as a direction: dividing by their size would give gradients
# beyond the range of float32.
LEAST = 2.0**-60


def contract(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf); smaller still where all entries are below `LEAST`."""
    scaled = divide_by_largest(tall)
    return scaled / size_of(gram_of(scaled, scaled.dtype))


def divide_by_largest(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
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


def cap(x: Float[Tensor, "batch rows cols"], most: float) -> Float[Tensor, "batch rows cols"]:
    """x min(1, most / ||x||_F), for most >= 1."""
    unit = largest(x, 1.0)
    small = x / unit
    # Squares, because a norm has no second derivative at zero. Below 1 they are only where ||x|| < 1 <= most.
    square = small.square().sum((-2, -1), keepdim=True).clamp(min=1.0)
    # unit min(1, most / ||x||): numbers in range, those of the derivative too.
    return small * torch.minimum(square.rsqrt() * most, unit)


def dot(left: Float[Tensor, "batch rows cols"], right: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch 1 1"]:
    """<L, R>, the sum of the products of entries."""
    return (left * right).sum((-2, -1), keepdim=True)
