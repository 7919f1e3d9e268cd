"""Bringing free numbers to a size in which nothing overflows, underflows or loses its gradient."""

import math

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.nn.methods._arithmetic.precise_products import gram_of

# Free numbers all smaller than this count as small, not as a direction: dividing by their size would give gradients
# beyond the range of float32.
LEAST = 2.0**-60


def contract(tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
    """W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf); smaller still where all entries are below `LEAST`."""
    scaled = divide_by_largest(tall)
    return scaled / size_of(gram_of(scaled, scaled.dtype))


def divide_by_largest(tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
    """W / m with m its largest entry, or `LEAST` if that is larger; a constant for autograd: it cancels afterwards."""
    return tall / largest(tall)


def largest(tall: Inexact[Tensor, "batch rows cols"], least: float = LEAST) -> Float[Tensor, "batch 1 1"]:
    """The largest entry, of complex ones the largest part, or `least` if that is larger; a constant for autograd."""
    return torch.linalg.vector_norm(parts_of(tall.detach()), math.inf, (-2, -1), keepdim=True).clamp(min=least)


def largest_in_columns(tall: Inexact[Tensor, "batch rows cols"]) -> Float[Tensor, "batch 1 cols"]:
    """The same for each column."""
    found = torch.linalg.vector_norm(parts_of(tall.detach()), math.inf, -2, keepdim=True).clamp(min=LEAST)
    return found.unflatten(-1, (-1, 2)).amax(-1) if tall.dtype.is_complex else found


def signs(x: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
    """x / |x|, 0 where x is; complex numbers below `LEAST` count as zero, for torch divides by them in two steps."""
    return (torch.where(x.abs() > LEAST, x, 0.0) if x.dtype.is_complex else x).sgn()


def size_of(gram: Inexact[Tensor, "batch cols cols"]) -> Inexact[Tensor, "batch 1 1"]:
    """b >= ||W|| of a Gram matrix W'W: b^2 = min(||W'W||_F, ||W'W||_inf); at least 1, as with a largest entry of 1."""
    return sizes_of(gram)[0].sqrt()


def sizes_of(
    gram: Inexact[Tensor, "batch cols cols"],
) -> tuple[Inexact[Tensor, "batch 1 1"], Inexact[Tensor, "batch 1 1"], Inexact[Tensor, "batch cols 1"]]:
    """The b^2 of `size_of`, and what it was chosen from: ||W'W||_F and the row sums."""
    if gram.dtype.is_complex:
        # torch divides complex numbers by their size in two steps, which makes NaN of the smallest.
        gram = torch.where(gram.detach().abs() > LEAST, gram, 0.0)
    whole = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True)
    rows = torch.linalg.vector_norm(gram, 1, -1, keepdim=True)
    return torch.minimum(whole, rows.amax(-2, keepdim=True)).clamp(min=1.0), whole, rows


def cap(x: Inexact[Tensor, "batch rows cols"], most: float) -> Inexact[Tensor, "batch rows cols"]:
    """x min(1, most / ||x||_F), for most >= 1."""
    if x.dtype.is_complex:
        return torch.view_as_complex(cap(parts_of(x), most).unflatten(-1, (x.shape[-1], 2)))
    unit = largest(x, 1.0)
    small = x / unit
    # Squares, because a norm has no second derivative at zero. Below 1 they are only where ||x|| < 1 <= most.
    square = small.square().sum((-2, -1), keepdim=True).clamp(min=1.0)
    # unit min(1, most / ||x||): numbers in range, those of the derivative too.
    return small * torch.minimum(square.rsqrt() * most, unit)


def dot(
    left: Inexact[Tensor, "batch rows cols"], right: Inexact[Tensor, "batch rows cols"]
) -> Inexact[Tensor, "batch 1 1"]:
    """<L, R>, the sum of the products of entries; of complex ones, that of their parts."""
    return (parts_of(left) * parts_of(right)).sum((-2, -1), keepdim=True)


def parts_of(x: Inexact[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows more"]:
    """Real and imaginary parts side by side; the matrix itself if it is real."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if x.dtype.is_complex else x
