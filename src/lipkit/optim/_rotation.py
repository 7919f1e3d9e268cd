"""Rotations in few dimensions of a large space: exponentials of skew matrices of low rank."""

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.methods._arithmetic.matrix_exponential import matrix_exponential


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
    skew = half - half.mH
    norm = torch.linalg.matrix_norm(skew, keepdim=True)
    turned = matrix_exponential(skew, norm, float(norm.amax()) if norm.numel() else 0.0)
    return point + basis @ ((turned - identity) @ (basis.mH @ point))
