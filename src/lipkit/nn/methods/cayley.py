"""Orthogonal matrices by the Cayley transform."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import widest
from lipkit.nn.methods._arithmetic.rotation_angles import skew_of_angles
from lipkit.nn.methods._arithmetic.safe_scaling import cap
from lipkit.nn.methods._base import Blocks
from lipkit.nn.methods._isometry import IsometryMethod

# The largest ||A||: the condition of I + A, which one Björck step has to make up for.
_MOST = {torch.float32: 2.0**13, torch.float64: 2.0**26}
# The tangent of half an angle of pi, as far as float32 goes.
_FLAT = 2.0**10
# Singular values of I + A below this part of the largest count as zero: half of the digits of float64.
_SINGULAR = 2.0**-26


@final
@dataclass(frozen=True)
class Cayley(IsometryMethod):
    """The Cayley transform of the free matrix [U; V], U square:
        A = U - U' + V'V,   Z = (I + A)^-1,   W = [2 Z - I; -2 V Z],
    which for square matrices is (I - A)(I + A)^-1 with A skew. Wide matrices are transposed.

    I + A has the symmetric part I + V'V, so it is never singular; the two summands of A are scaled down to norm 2^13
    (2^26 in float64) where they are larger, so that it is never ill-conditioned either.

    Guarantee: an isometry for every free matrix, norm at most 1 as stored. Reached: square matrices with determinant 1
    and no eigenvalue -1, tall ones whose upper block has no eigenvalue -1. `inverse` gives U = (K - K')/4 with
    K = (I - Q)(I + Q)^-1, V = -Q_2 (I + Q)^-1 of the upper block Q and the lower Q_2; a square matrix that is out of
    reach is replaced by the nearest rotation, angles of pi by almost pi. Cost: one inverse of cols^3, by LU; products.
    Gradient: of the inverse, two products.
    Reference: Cayley 1846; Helfrich, Willmott and Ye 2018; Trockman and Kolter 2021 (rectangular).
    """

    takes_complex = True

    def __str__(self) -> str:
        return "Cayley"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        n = tall.shape[-1]
        most = _MOST[tall.real.dtype]
        upper, lower = tall[:, :n], tall[:, n:]
        # Halves, because the difference of the largest numbers is infinite, and 2 Z is the inverse of (I + A) / 2.
        half = upper / 2
        # The eigenvalues of a real skew matrix come in pairs, so its norm is at most ||A||_F / 2^(1/2).
        inner = cap(half - half.mH, most * (0.5 if tall.dtype.is_complex else math.sqrt(0.5)))
        identity = torch.eye(n, dtype=tall.dtype, device=tall.device).expand(len(tall), -1, -1)
        inner = torch.add(inner, identity, alpha=0.5)
        # Without the check for zero pivots, for which a GPU would be waited for: there are none.
        if not lower.shape[-2]:
            return torch.linalg.inv_ex(inner).inverse - identity
        lower = cap(lower, math.sqrt(most))
        solved = torch.linalg.inv_ex(torch.baddbmm(inner, lower.mH, lower, alpha=0.5)).inverse
        return torch.cat([solved - identity, torch.bmm(-lower, solved)], -2)

    def inverse_isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        if tall.shape[-2] == tall.shape[-1] and not bool(_within_reach(tall).all()):
            return skew_of_angles(tall, lambda angle: max(-_FLAT, min(_FLAT, -math.tan(angle / 2)))) / 2
        return invert_transform(tall)

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        wide = weight.detach().to(widest(weight.dtype)).flatten(2)
        tall = wide.mT if geometry.rows < geometry.cols else wide
        return bool(_within_reach(tall[:, : tall.shape[-1]]).all()) and super().is_feasible(weight, geometry)

    def start(self, geometry: Geometry) -> Blocks:
        """The transform of Gaussian numbers with variance 1 / min(rows, cols): angles up to about 140 degrees."""
        raw = torch.randn(geometry.groups, geometry.rows, geometry.cols) * min(geometry.rows, geometry.cols) ** -0.5
        return self.matrix(raw).reshape(geometry.shape)


def invert_transform(tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
    """Free matrices of isometries [Q; Q_2]: U = (K - K') / 4 with K = (I - Q)(I + Q)^-1, V = -Q_2 (I + Q)^-1."""
    n = tall.shape[-1]
    upper, lower = tall[:, :n], tall[:, n:]
    identity = torch.eye(n, dtype=tall.dtype, device=tall.device)
    # The pseudo-inverse is the inverse within reach, and finite elsewhere.
    solved = torch.linalg.pinv(identity + upper, rtol=_SINGULAR)
    quotient = (identity - upper) @ solved
    return torch.cat([(quotient - quotient.mH) / 4, -lower @ solved], -2)


def _within_reach(upper: Tensor) -> Tensor:
    identity = torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device)
    return torch.linalg.svdvals(identity + upper).amin(-1) > 1 / _FLAT
