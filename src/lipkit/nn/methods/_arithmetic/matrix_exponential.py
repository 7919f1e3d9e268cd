"""The matrix exponential, to the digits of its dtype."""

import math

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_16

# The coefficients of the approximant of degree 13, divided by the first, and the norm up to which it is exact to the
# rounding of float64.
_COEFFICIENTS = (
    *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600),
    *(670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1),
)
_PADE = tuple(b / _COEFFICIENTS[0] for b in _COEFFICIENTS)
_REACH = 5.37


def matrix_exponential(
    matrix: Inexact[Tensor, "*batch size size"], norm: Inexact[Tensor, "*batch 1 1"], most: float
) -> Inexact[Tensor, "*batch size size"]:
    """exp(A) = r(A / 2^s)^(2^s) with the Padé approximant r of degree 13, s = ceil(log2(norm / 5.37)) for each A.

    r is (V + U)/(V - U) with an even V and an odd U, so of skew matrices it is a Cayley transform: orthogonal (or
    unitary) up to rounding. Errors double with each squaring: a few units in the last place times 1 + norm in all.
    The number of operations depends on `most` alone, so the function exports and compiles.

    torch.matrix_exp is off by 5e-5 in float32 and by 2.5e-10 in float64 for single matrices of norms at which it takes
    its polynomial of degree 8 (torch 2.13), and by other amounts for the same matrix in a batch.

    Cost: 7 products, one inverse, and ceil(log2(most / 5.37)) squarings. Reference: Higham 2005.

    Args:
        matrix: The matrices A.
        norm: Upper bounds of their norms, of each matrix in any norm that is submultiplicative; no gradient.
        most: An upper bound of all that `norm` can be, known before the numbers are.
    """
    # A norm that was computed may exceed `most` by its rounding.
    squarings = math.ceil(math.log2(most * (1 + FLOAT32_ROUNDINGS_16) / _REACH)) if most > _REACH / 2 else 0
    halvings = torch.log2(norm.detach().clamp(min=_REACH) / _REACH).ceil()
    a = matrix * torch.exp2(-halvings)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    b = _PADE
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    odd = a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one
    even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
    odd = a @ odd
    # Without the check for zero pivots, for which a GPU would be waited for: within reach V - U is well-conditioned, so
    # that an inverse loses no digits. Second derivatives of a solve in forward mode are wrong in torch 2.13.
    found = torch.linalg.inv_ex(even - odd).inverse @ (even + odd)
    for done in range(squarings):
        found = torch.where(halvings > done, found @ found, found)
    return found
