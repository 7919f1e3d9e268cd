"""The angles of orthogonal and unitary matrices."""

import math
from collections.abc import Callable

import numpy as np
import scipy
import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.precision import widest


def skew_of_angles(
    rotations: Inexact[Tensor, "batch n n"], value: Callable[[float], float]
) -> Inexact[Tensor, "batch n n"]:
    """The skew matrix with `value(angle)` in place of each angle of an orthogonal matrix: its logarithm, for example.

    Q = Z R Z' with 2 x 2 rotations along the diagonal of R, by the real Schur form. Eigenvalues -1 are joined to
    rotations by pi; one that is left over, for det Q = -1, is taken as 1: the nearest rotation. Of a unitary matrix,
    Q = Z diag(e^(i angle)) Z*, the skew-Hermitian one is Z diag(i value(angle)) Z*. Cost: 25 n^3.
    """
    skew = _skew_hermitian if rotations.dtype.is_complex else _skew
    wide = rotations.detach().cpu().to(widest(rotations.dtype)).resolve_conj()
    return torch.from_numpy(np.stack([skew(matrix, value) for matrix in wide.numpy()])).to(rotations)


def _skew_hermitian(matrix: np.ndarray, value: Callable[[float], float]) -> np.ndarray:
    form, basis = scipy.linalg.schur(matrix)
    turned = np.array([1j * value(angle) for angle in np.angle(np.diagonal(form))])
    return (basis * turned) @ basis.conj().T


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
