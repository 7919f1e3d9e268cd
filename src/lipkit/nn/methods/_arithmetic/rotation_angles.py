"""The angles of orthogonal matrices."""

import math
from collections.abc import Callable

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor


def skew_of_angles(
    rotations: Float[Tensor, "batch n n"], value: Callable[[float], float]
) -> Float[Tensor, "batch n n"]:
    """The skew matrix with `value(angle)` in place of each angle of an orthogonal matrix: its logarithm, for example.

    Q = Z R Z' with 2 x 2 rotations along the diagonal of R, by the real Schur form. Eigenvalues -1 are joined to
    rotations by pi; one that is left over, for det Q = -1, is taken as 1: the nearest rotation. Cost: 25 n^3.
    """
    found = np.stack([_skew(matrix, value) for matrix in rotations.detach().cpu().double().numpy()])
    return torch.from_numpy(found).to(rotations)


def _skew(matrix: np.ndarray, value: Callable[[float], float]) -> np.ndarray:
    form, basis = scipy.linalg.schur(matrix)[:2]
    n = len(matrix)
    skew = np.zeros((n, n))
    alone: list[int] = []
    i = 0
    while i < n:
        if i + 1 < n and form[i + 1, i] != 0:
            sine, cosine = form[i + 1, i] - form[i, i + 1], form[i, i] + form[i + 1, i + 1]
            skew[i + 1, i] = value(math.atan2(sine, cosine))
            i += 2
            continue
        if form[i, i] < 0:
            alone.append(i)
        i += 1
    for one, other in zip(alone[::2], alone[1::2], strict=False):
        skew[other, one] = value(math.pi)
    return basis @ (skew - skew.T) @ basis.T
