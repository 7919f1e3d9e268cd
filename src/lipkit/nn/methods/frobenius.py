"""Weights divided by their Frobenius norm."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._base import Blocks, WeightMethod
from lipkit.nn.methods.rko import overlap
from lipkit.rounding.slacks import UNIT


@final
@dataclass(frozen=True)
class Frobenius(WeightMethod):
    """W / (||W||_F overlap^(1/2)), for each group; overlap: how often a convolution reads an entry, 1 for matrices.

    Norm 1 if W has rank one, as for a single output; otherwise smaller, down to rank^(-1/2).

    Guarantee: norm at most 1 as stored, in every geometry. Reached: exactly that size. Cost: one sum. Gradient: of the
    formula; weights all below 2^-60 count as small and are not blown up.
    Reference: none needed: the spectral norm is at most the Frobenius norm.
    """

    scale_free = True

    def __str__(self) -> str:
        return "Frobenius norm 1"

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        wide = raw.to(torch.float64)
        axes = tuple(range(1, raw.ndim))
        size = torch.linalg.vector_norm(wide, dim=axes, keepdim=True).clamp(min=LEAST)
        # A sum of squares in any order, its root and the quotient are within as many roundings as there are terms.
        slack = 1 + (math.prod(raw.shape[1:]) + 8) * UNIT
        return store(wide / (size * (slack * math.sqrt(overlap(geometry)))), raw.dtype)

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether every group has the Frobenius norm that this method gives, to 1e-5."""
        size = torch.linalg.vector_norm(weight.detach().to(torch.float64).flatten(1), dim=1)
        return bool(((size * math.sqrt(overlap(geometry)) - 1).abs() <= 1e-5).all())
