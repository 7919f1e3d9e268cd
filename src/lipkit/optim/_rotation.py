"""Rotations in few dimensions of a large space: exponentials of skew matrices of low rank."""

import math

import torch
from jaxtyping import Inexact
from torch import Tensor

# The coefficients of the approximant of degree 7, divided by the first, and the norm up to which float64 trusts it.
_PADE = tuple(b / 17297280 for b in (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1))
_REACH = 0.95


def rotate(
    point: Inexact[Tensor, "*batch long short"],
    left: Inexact[Tensor, "*batch long rank"],
    right: Inexact[Tensor, "*batch long rank"],
) -> Inexact[Tensor, "*batch long short"]:
    """exp(L R' - R L') W.

    With an orthonormal basis Q of the columns of L and R the skew matrix is Q K Q', K of size min(n, 2 rank), so
        exp(L R' - R L') W = W + Q (exp(K) - I) Q'W.
    Cost: a QR factorisation of 2 rank columns, an exponential of that size, two products with W.
    """
    basis = torch.linalg.qr(torch.cat([left, right], -1)).Q
    half = (basis.mH @ left) @ (right.mH @ basis)
    identity = torch.eye(half.shape[-1], dtype=half.dtype, device=half.device)
    return point + basis @ ((exponential(half - half.mH) - identity) @ (basis.mH @ point))


def exponential(skew: Inexact[Tensor, "*batch size size"]) -> Inexact[Tensor, "*batch size size"]:
    """exp(K) for skew K, orthogonal (or unitary) up to rounding: r(K / 2^s)^(2^s), r the Padé approximant of degree 7.

    r is (V + U)/(V - U) with an even V and an odd U, so it is a Cayley transform of something skew. torch.matrix_exp is
    off by 5e-5 in float32 and by 2.5e-10 in float64 for single matrices with norms at which it takes its polynomial of
    degree 8 (torch 2.13).
    Cost: 5 products, one solve, and s products. Reference: Higham 2005.
    """
    size = float(skew.abs().sum(-1).amax()) if skew.numel() else 0.0
    halvings = max(0, math.ceil(math.log2(size / _REACH))) if size > 0 else 0
    k = skew / 2.0**halvings
    one = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    k2 = k @ k
    k4 = k2 @ k2
    k6 = k4 @ k2
    b = _PADE
    odd = k @ (b[7] * k6 + b[5] * k4 + b[3] * k2 + b[1] * one)
    even = b[6] * k6 + b[4] * k4 + b[2] * k2 + b[0] * one
    found = torch.linalg.solve(even - odd, even + odd)
    for _ in range(halvings):
        found = found @ found
    return found
