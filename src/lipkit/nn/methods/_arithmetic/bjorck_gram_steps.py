"""Björck steps of a matrix with many more rows than columns, on its Gram matrix alone."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.nn.methods._arithmetic.precise_products import gram_of, product
from lipkit.nn.methods._arithmetic.safe_scaling import divide_by_largest, size_of
from lipkit.nn.methods._arithmetic.stored_digits import room_for
from lipkit.nn.methods._isometry import excess_of
from lipkit.rounding.slacks import ULP


def by_gram(tall: Float[Tensor, "batch rows cols"], scales: tuple[float, ...]) -> Float[Tensor, "batch rows cols"]:
    """Björck steps from c W / b, c in `scales`, b >= ||W||, and a last one with c = 1, with norm at most 1 as stored.

    All steps multiply W from the right by functions of A = W'W / b^2, so only those are computed, T being their
    product so far:  P = 3/2 c I - 1/2 c^3 A,   T <- T P,   A <- A P^2.
    The last step, W T (3/2 I - 1/2 T'W'W T), is done in float64; rounding before it changes T, which it squares away.
    A Gram matrix has half the digits for small singular values: in float32 those below b / 1000 come out short.

    Cost: two products of rows cols^2 in float64, forward; three in the type of W, backward; about 3 `steps` of cols^3.
    """
    rows, cols = tall.shape[-2:]
    scaled = divide_by_largest(tall)
    gram = gram_of(scaled, torch.float64)
    size = size_of(gram)
    root = (_root((gram / size.square()).to(tall.dtype), scales) / size).to(tall.dtype)
    half = product(root.mT, gram, torch.float64)
    inner = product(root.mT, half.mT, torch.float64)
    error = _error(scaled, root)
    excess = excess_of(inner, False, error)
    room = room_for(rows, cols, 1, tall.dtype) / (1 + error)
    whole = product(root, _factor(inner, excess.rsqrt(), room), torch.float64)
    return product(scaled, whole, tall.dtype)


def _root(gram: Float[Tensor, "batch cols cols"], scales: tuple[float, ...]) -> Float[Tensor, "batch cols cols"]:
    root = step = _factor(gram, scales[0])
    for scale in scales[1:]:
        gram = torch.bmm(gram, gram_of(step, step.dtype))
        step = _factor(gram, scale)
        root = torch.bmm(root, step)
    return root


def _factor(
    gram: Float[Tensor, "batch cols cols"], scale: float | Tensor, room: float | Tensor = 1.0
) -> Float[Tensor, "batch cols cols"]:
    """(3/2 c I - 1/2 c^3 W'W) r: what a Björck step from c W multiplies W by, with r in [0, 1] for rounding."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return (1.5 * room * scale) * identity - (0.5 * room * scale**3) * gram


def _error(
    scaled: Float[Tensor, "batch rows cols"], root: Float[Tensor, "batch cols cols"]
) -> Float64[Tensor, "batch 1 1"]:
    """A bound of what rounding in the five products of the last step adds to its norm, and to that of T'W'W T.

    With t^2 = min(||T||_F^2, ||T||_1 ||T||_inf), a bound of ||abs(T)||^2, and q = t ||W||_F: the Gram matrix is known
    up to gamma_rows ||W||_F^2 and T'W'W T up to (gamma_rows + 2 gamma_cols) q^2; the factor has norm at most 3/2, which
    leaves 3 cols^(1/2) gamma_(cols + 5) q for the other two. Twice that, for the rounding of this formula.
    """
    rows, cols = scaled.shape[-2:]
    both = (-2, -1)
    entries = root.detach().to(torch.float64)
    by_row, by_col = (torch.linalg.vector_norm(entries, 1, axis, keepdim=True).amax(both, True) for axis in (-1, -2))
    square = torch.minimum(torch.linalg.vector_norm(entries, dim=both, keepdim=True).square(), by_row * by_col)
    q = square.sqrt() * torch.linalg.vector_norm(scaled.detach(), dim=both, keepdim=True, dtype=torch.float64)
    return ULP * (rows + 5 * cols + 16) * q * (q + math.sqrt(cols))
