"""Orthogonal matrices by the matrix exponential."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.matrix_exponential import matrix_exponential
from lipkit.nn.methods._arithmetic.rotation_angles import skew_of_angles
from lipkit.nn.methods._arithmetic.safe_scaling import cap
from lipkit.nn.methods._base import Blocks
from lipkit.nn.methods._isometry import IsometryMethod, has_determinant, with_determinant


@final
@dataclass(frozen=True)
class Exponential(IsometryMethod):
    """The exponential of the free matrix [U; V], U square:
        W = exp([[0, -V'], [V, 0]])[:, :cols] exp(U - U') = [cos S; V S^-1 sin S] exp(U - U'),   S = (V'V)^(1/2),
    which for square matrices is exp(U - U'). Wide matrices are transposed. With G = V'V the first factor is read off
    exp([[0, -G], [I, 0]]), so the cost does not grow with the cube of the rows.

    Both exponents are scaled down to Frobenius norm 2 pi cols^(1/2) where they are larger; angles up to pi, which reach
    everything, need half of it.

    Guarantee: an isometry for every free matrix, norm at most 1 as stored. Reached: every rotation (square, determinant
    1) and every tall or wide isometry. `inverse`: the real Schur form for rotations; for tall matrices the polar
    factors of the upper block, Q = (cos S) exp(U - U'). A square matrix of determinant -1 is replaced by the nearest
    rotation. Cost: exponentials of cols and 2 cols, some ten products each. Gradient: of every step.
    Reference: Lezcano-Casado and Martínez-Rubio 2019 (square); the rectangular form in two factors is ours.
    """

    takes_complex = True

    def __str__(self) -> str:
        return "matrix exponential"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        n = tall.shape[-1]
        most = 2 * math.pi * math.sqrt(n)
        upper, lower = tall[:, :n], tall[:, n:]
        # Halves, because the difference of the largest numbers is infinite.
        half = upper / 2
        turn = 2 * cap(half - half.mH, most / 2)
        norm = torch.linalg.vector_norm(turn.detach(), dim=(-2, -1), keepdim=True)
        if not turn.dtype.is_complex:
            # The eigenvalues of a real skew matrix come in pairs, so its norm is at most ||A||_F / 2^(1/2).
            norm = norm * math.sqrt(0.5)
        rotation = matrix_exponential(turn, norm, most)
        if not lower.shape[-2]:
            return rotation
        lower = cap(lower, most)
        # Any positive number may stand here; this one makes the two corners alike, and the powers small.
        size = torch.linalg.vector_norm(lower.detach(), dim=(-2, -1), keepdim=True).clamp(min=1.0)
        gram = torch.bmm(lower.mH, lower) / size
        identity = torch.eye(n, dtype=tall.dtype, device=tall.device) * size
        zero = torch.zeros_like(gram)
        # The norm is that of the larger corner: ||V'V|| / size <= ||V||_F^2 / size <= size, or that of the identity.
        both = torch.cat([torch.cat([zero, -gram], -1), torch.cat([identity, zero], -1)], -2)
        turned = matrix_exponential(both, size, most)
        cosine, sine = turned[:, :n, :n], turned[:, n:, :n] / size
        return torch.bmm(torch.cat([cosine, torch.bmm(lower, sine)], -2), rotation)

    def inverse_isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        n = tall.shape[-1]
        upper, lower = tall[:, :n], tall[:, n:]
        if not lower.shape[-2]:
            return skew_of_angles(tall, lambda angle: angle) / 2
        left, cosine, right = torch.linalg.svd(upper)
        sign = torch.ones_like(cosine)
        if not tall.dtype.is_complex:
            # The smallest cosine is last; with the other sign of it the rotation has determinant 1.
            sign[:, -1] = torch.linalg.det(left @ right).sign()
        left_signed = left * sign[:, None, :]
        rotation = left_signed @ right
        columns = lower @ rotation.mH @ left
        sine = torch.linalg.vector_norm(columns, dim=-2)
        angle = torch.atan2(sine, sign * cosine)
        # An angle of pi has no direction left of it; the others are all zero then, so that any will do.
        anything = torch.zeros_like(columns)
        anything[:, 0] = 1
        lost = (sine < 1e-12) & (sign * cosine < 0)
        unit = torch.where(lost[:, None, :], anything, columns / sine.clamp(min=1e-300)[:, None, :])
        return torch.cat([skew_of_angles(rotation, lambda angle: angle) / 2, (unit * angle[:, None, :]) @ left.mH], -2)

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        return has_determinant(weight, geometry, 1.0) and super().is_feasible(weight, geometry)

    def start(self, geometry: Geometry) -> Blocks:
        """Uniform among rotations, or among isometries if not square."""
        return with_determinant(super().start(geometry), geometry, 1.0)
