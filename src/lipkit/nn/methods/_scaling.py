"""Bringing free numbers to a size in which nothing overflows, underflows or loses its gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

# Free numbers all smaller than this count as small, not as a direction: dividing by their size would give gradients
# beyond the range of float32.
LEAST = 2.0**-60


def contracted(tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
    """W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf); smaller still where all entries are below `LEAST`.

    The largest entry is a constant for autograd: it cancels.
    """
    largest = tall.detach().abs().amax((-2, -1), keepdim=True).clamp(min=LEAST)
    scaled = tall / largest
    gram = scaled.mT @ scaled
    square = torch.minimum(torch.linalg.vector_norm(gram, dim=(-2, -1)), gram.abs().sum(-1).amax(-1))
    # A largest entry of 1 has a Gram entry of 1 or more.
    return scaled / square[:, None, None].clamp(min=1.0).sqrt()


def capped(x: Float[Tensor, "batch rows cols"], most: float) -> Float[Tensor, "batch rows cols"]:
    """x min(1, most / ||x||_F)."""
    unit = x.detach().abs().amax((-2, -1), keepdim=True).clamp(min=1.0)
    limit = most / unit
    # Squares, because a norm has no second derivative at zero.
    square = (x / unit).square().sum((-2, -1), keepdim=True)
    # As (x / unit) (unit limit / size), unit limit = most: numbers in range, those of the derivative too.
    return (x / unit) * (most / torch.maximum(square, limit.square()).sqrt())
