"""Orthogonal matrices as products of reflections."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST, largest_in_columns
from lipkit.nn.methods._base import Blocks
from lipkit.nn.methods._isometry import IsometryMethod, has_determinant, with_determinant


@final
@dataclass(frozen=True)
class Householder(IsometryMethod):
    """The first columns of H_1 H_2 ... H_n, H_i = I - 2 v_i v_i' / ||v_i||^2 with v_i the columns of the free matrix.

    In compact form the product is I - V T V' with unit columns V and T^-1 = I/2 + the part of V'V above the diagonal,
    so one Gram product, one triangular solve and one product give all reflections at once; the entries of T are at most
    4 in size, so the solve is benign. Wide matrices are transposed.

    Complex columns turn by t_i = 1 + (v_ii / |v_ii|)^2 in the place of 2, which makes H_i unitary with a phase of its
    own: reflections alone would leave the phases of a unitary matrix out of reach.

    Guarantee: an isometry for every free matrix without zero columns, norm at most 1 as stored (a column of zeros is no
    reflection, one below 2^-60 part of one). Reached: every tall isometry and every unitary matrix; real square ones of
    determinant (-1)^n. `inverse` also gives those of the other sign, with a last column of zeros, which has no
    gradient; `is_feasible` refuses them. Cost: 2 rows cols^2 + cols^3 in three calls. Gradient: of the solve.
    Reference: Joffrain et al. 2006 (compact form); Mhammedi et al. 2017; Mathiasen et al. 2020 (blocks of reflections);
    the phases are ours.
    """

    takes_complex = True

    def __str__(self) -> str:
        return "Householder reflections"

    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        rows, n = tall.shape[-2:]
        scaled = tall / largest_in_columns(tall)
        unit = scaled / torch.linalg.vector_norm(scaled, dim=-2, keepdim=True).clamp(min=1.0)
        turn = _turns(scaled)[..., None]
        identity = torch.eye(n, dtype=tall.dtype, device=tall.device)
        inverse = turn * torch.triu(unit.mH @ unit, 1) + identity
        solved = torch.linalg.solve_triangular(inverse, turn * unit[:, :n].mH, upper=True)
        return torch.eye(rows, n, dtype=tall.dtype, device=tall.device) - unit @ solved

    def inverse_isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        n = tall.shape[-1]
        rest = tall.clone()
        vectors = torch.zeros_like(tall)
        for i in range(n):
            vector = vectors[:, i:, i]
            vector.copy_(rest[:, i:, i])
            # v = x - e_i for a unit vector x, its first entry without cancellation.
            first = vector[:, 0].real.clone()
            vector[:, 0] -= first
            others = torch.linalg.vector_norm(vector, dim=-1).square()
            vector[:, 0] += torch.where(first > 0, -others / (1 + first), first - 1)
            # A column that is e_i already is left alone by the next direction, too, if there is one; complex ones by
            # a turn of nothing.
            still = torch.linalg.vector_norm(vector, dim=-1) < 1e-12
            vector[still] = 0
            if tall.dtype.is_complex:
                vector[still, 0] = vector.new_tensor(1j)
            else:
                vector[still, 1:2] = 1
            size = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
            vector /= torch.where(size > 0, size, 1.0)
            below = rest[:, i:, i:]
            turn = _turns(vector[..., None])[..., None]
            below -= turn.conj() * vector[:, :, None] * (vector[:, None, :].conj() @ below)
        return vectors

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        reached = has_determinant(weight, geometry, (-1.0) ** geometry.cols)
        return reached and super().is_feasible(weight, geometry)

    def start(self, geometry: Geometry) -> Blocks:
        """Uniform among the isometries within reach."""
        return with_determinant(super().start(geometry), geometry, (-1.0) ** geometry.cols)


def _turns(columns: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch cols"]:
    """t_i = 1 + (v_ii / |v_ii|)^2: 2 for real numbers, and where v_ii counts as zero."""
    first = torch.diagonal(columns, dim1=-2, dim2=-1)
    if not columns.dtype.is_complex:
        return torch.full_like(first, 2.0)
    some = first.abs() >= LEAST
    return 1 + torch.where(some, first, 1.0).sgn().square()
