"""Bringing free numbers to a size in which nothing overflows, underflows or loses its gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.methods._products import gram_of

# Free numbers all smaller than this count as small, not as a direction: dividing by their size would give gradients
# beyond the range of float32.
LEAST = 2.0**-60


def contracted(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf); smaller still where all entries are below `LEAST`."""
    scaled = levelled(tall)
    return scaled / size_of(gram_of(scaled, scaled.dtype))


def levelled(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / m with m its largest entry, or `LEAST` if that is larger; a constant for autograd: it cancels afterwards."""
    return tall / tall.detach().abs().amax((-2, -1), keepdim=True).clamp(min=LEAST)


def size_of(gram: Float[Tensor, "batch cols cols"]) -> Float[Tensor, "batch 1 1"]:
    """b >= ||W|| of a Gram matrix W'W: b^2 = min(||W'W||_F, ||W'W||_inf); at least 1, as with a largest entry of 1."""
    square = torch.minimum(torch.linalg.vector_norm(gram, dim=(-2, -1)), gram.abs().sum(-1).amax(-1))
    return square[:, None, None].clamp(min=1.0).sqrt()


def capped(x: Float[Tensor, "batch rows cols"], most: float, times: float = 1.0) -> Float[Tensor, "batch rows cols"]:
    """x min(1, most / ||x||_F), so many times."""
    unit = x.detach().abs().amax((-2, -1), keepdim=True).clamp(min=1.0)
    limit = most / unit
    # Squares, because a norm has no second derivative at zero.
    small = x / unit
    square = small.square().sum((-2, -1), keepdim=True)
    # As small (unit limit / size), unit limit = most: numbers in range, those of the derivative too.
    return small * (times * most / torch.maximum(square, limit.square()).sqrt())
