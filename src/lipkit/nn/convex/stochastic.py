"""Weights without negative entries that come from orthogonal matrices: far from rank one at the start."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.nn.convex._perron import of_norm_one
from lipkit.nn.convex._signed import NonNegativeMethod
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._base import Blocks, MatrixMethod, Promise, require_isometries
from lipkit.nn.methods.bjorck import Bjorck

# Entries of weights below this part of the largest have no logarithm.
_SMALLEST = 1e-30


class _FromIsometry(NonNegativeMethod, MatrixMethod):
    """A method for matrices without negative entries."""

    def promise(self, geometry: Geometry) -> Promise:
        if math.prod(geometry.taps) != 1:
            raise UnsupportedError(
                f"{type(self).__name__} makes matrices, and kernel {geometry.taps} is none; use NonNegative() for "
                "convolutions without negative entries."
            )
        return Promise.CONTRACTION


@final
@dataclass(frozen=True)
class Stochastic(_FromIsometry):
    """softmax(n Q) over each row, over a bound of its norm: n columns, and Q orthogonal, or free numbers themselves.

    The factor n makes a row prefer a few columns; without it the softmax of such small numbers is nearly constant, and
    the matrix of rank one. For 512 x 512 matrices the stable rank at the start is about 100, and 37 for free numbers
    instead of Q; of all matrices >= 0 that are in use these are the furthest from rank one. Networks nevertheless
    learned more slowly from them in our trial (docs/benchmarks.md).

    Guarantee: entries > 0 or underflowed to 0, and norm at most 1 as stored; before the division rows sum up to one.
    Cost: that of `of`, one pass, and 18 products with a vector. Gradient: exact. `inverse` finds the free numbers of
    every weight that the method made.
    Reference: Béthune 2024, section 7.1 and its code; the inverse and the bound of the norm are ours.

    Args:
        of: The method for Q; None takes the free numbers as they are.
    """

    of: MatrixMethod | None = Bjorck()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        if self.of is not None:
            require_isometries(self.of, "Stochastic.of")

    def __str__(self) -> str:
        return f"softmax of rows, of {'free numbers' if self.of is None else self.of}"

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        scores = (raw if self.of is None else self.of.matrix(raw)).to(torch.float64)
        rows = torch.softmax(scores * raw.shape[-1], -1)
        groups, *sides = raw.shape
        return of_norm_one(rows, Geometry(groups, sides[0], sides[1]), raw.dtype)

    def start(self, geometry: Geometry) -> Blocks:
        """The weight of a random orthogonal matrix, or of uniform free numbers (Glorot)."""
        if self.of is None:
            limit = math.sqrt(6 / (geometry.rows + geometry.cols))
            return self((2 * torch.rand(geometry.shape, dtype=torch.float64) - 1) * limit, geometry)
        return self(self.of.inverse(super().start(geometry).to(torch.float64), geometry), geometry)

    def inverse_matrix(self, weight: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        wide = weight.to(torch.float64)
        cut = wide.clamp(min=_SMALLEST) if bool((wide > 0).any()) else torch.ones_like(wide)
        scores = cut.log() / weight.shape[-1]
        # A softmax forgets a number added to its row.
        centered = scores - scores.mean(-1, keepdim=True)
        if self.of is None:
            return centered.to(weight.dtype)
        return self.of.inverse_matrix(_isometry_of(centered)).to(weight.dtype)


def _isometry_of(centered: Float64[Tensor, "batch rows cols"]) -> Float64[Tensor, "batch rows cols"]:
    """The isometry whose rows without their means are given; an isometry near it if there is none.

    Q = C + m 1' with orthonormal rows has C C' = I - n m m', so m is an eigenvector of I - C C'. With more rows than
    columns, C has the null vector 1, and any unit vector outside its range completes it: the polar factor has one.
    """
    rows, cols = centered.shape[-2:]
    guess = centered
    if rows <= cols:
        rest = torch.eye(rows, dtype=centered.dtype, device=centered.device) - centered @ centered.mT
        values, vectors = torch.linalg.eigh(rest)
        guess = centered + vectors[..., -1:] * (values[..., -1:, None].clamp(min=0) / cols).sqrt()
    u, _, vh = torch.linalg.svd(guess, full_matrices=False)
    return u @ vh


@final
@dataclass(frozen=True)
class Orthostochastic(_FromIsometry):
    """The squared entries of an orthogonal matrix Q: rows and columns of a square one add up to 1.

    A tall Q has columns that add up to 1 and rows that add up to at most 1, a wide one the other way round. So the norm
    is at most (1 * 1)^(1/2) by Schur's test; for square matrices the vector of ones attains it.

    Guarantee: entries >= 0 and norm at most 1 as stored. Cost: that of `of`. Gradient: exact. At the start the stable
    rank is 3, whatever the size. Not every matrix with such sums is of this form, and `inverse` cannot know the signs
    of Q: it takes the isometry nearest to the roots of the entries, with the signs that they have.
    Reference: Béthune 2024, section 7.1.

    Args:
        of: The method for Q.
    """

    of: MatrixMethod = Bjorck()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        require_isometries(self.of, "Orthostochastic.of")

    def __str__(self) -> str:
        return f"squares of entries, of {self.of}"

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        return store(self.of.matrix(raw).to(torch.float64).square(), raw.dtype)

    def start(self, geometry: Geometry) -> Blocks:
        """The squared entries of a random isometry, with their signs, which `inverse` needs."""
        isometry = super().start(geometry)
        return isometry * isometry.abs()

    def inverse_matrix(self, weight: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        u, _, vh = torch.linalg.svd(weight.sign() * weight.abs().sqrt(), full_matrices=False)
        return self.of.inverse_matrix(u @ vh)
