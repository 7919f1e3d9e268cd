"""Orthogonal matrices as products of reflections."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._base import Blocks
from lipkit.nn.methods._isometry import IsometryMethod, has_determinant, with_determinant


@final
@dataclass(frozen=True)
class Householder(IsometryMethod):
    """The first columns of H_1 H_2 ... H_n, H_i = I - 2 v_i v_i' / ||v_i||^2 with v_i the columns of the free matrix.

    In compact form the product is I - V T V' with unit columns V and T^-1 = I/2 + the part of V'V above the diagonal,
    so one Gram product, one triangular solve and one product give all reflections at once; the entries of T are at most
    4 in size, so the solve is benign. Wide matrices are transposed.

    Guarantee: an isometry for every free matrix without zero columns, norm at most 1 as stored (a column of zeros is no
    reflection, one below 2^-60 part of one). Reached: every tall isometry; square ones of determinant (-1)^n. `inverse`
    also gives square ones of the other sign, with a last column of zeros, which has no gradient; `is_feasible` refuses
    them. Cost: 2 rows cols^2 + cols^3 in three calls. Gradient: of the solve.
    Reference: Joffrain et al. 2006 (compact form); Mhammedi et al. 2017; Mathiasen et al. 2020 (blocks of reflections).
    """

    def __str__(self) -> str:
        return "Householder reflections"

    def isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        rows, n = tall.shape[-2:]
        scaled = tall / tall.detach().abs().amax(-2, keepdim=True).clamp(min=LEAST)
        unit = scaled / torch.linalg.vector_norm(scaled, dim=-2, keepdim=True).clamp(min=1.0)
        half = torch.eye(n, dtype=tall.dtype, device=tall.device) / 2
        inverse = torch.triu(unit.mT @ unit, 1) + half
        solved = torch.linalg.solve_triangular(inverse, unit[:, :n].mT, upper=True)
        return torch.eye(rows, n, dtype=tall.dtype, device=tall.device) - unit @ solved

    def inverse_isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        n = tall.shape[-1]
        rest = tall.clone()
        vectors = torch.zeros_like(tall)
        for i in range(n):
            vector = vectors[:, i:, i]
            vector.copy_(rest[:, i:, i])
            # v = x - e_i for a unit vector x, its first entry without cancellation.
            tail = vector[:, 1:].square().sum(-1)
            vector[:, 0] = torch.where(vector[:, 0] > 0, -tail / (1 + vector[:, 0]), vector[:, 0] - 1)
            # A column that is e_i already is left alone by the next direction, too, if there is one.
            still = torch.linalg.vector_norm(vector, dim=-1) < 1e-12
            vector[still] = 0
            vector[still, 1:2] = 1
            size = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
            vector /= torch.where(size > 0, size, 1.0)
            below = rest[:, i:, i:]
            below -= 2 * vector[:, :, None] * (vector[:, None, :] @ below)
        return vectors

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        reached = has_determinant(weight, geometry, (-1.0) ** geometry.cols)
        return reached and super().is_feasible(weight, geometry)

    def start(self, geometry: Geometry) -> Blocks:
        """Uniform among the isometries within reach."""
        return with_determinant(super().start(geometry), geometry, (-1.0) ** geometry.cols)
