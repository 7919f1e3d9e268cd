"""The supremum of a symbol from a few frequencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError
from lipkit.linops import LinearOperator
from lipkit.norms._base import BlockNorm, Norm, refuse_state
from lipkit.norms.cholesky import Cholesky
from lipkit.norms.convolutions.symbol_grid import over_grid, symbols
from lipkit.rounding.slacks import ROUNDINGS_32


@final
@dataclass(frozen=True)
class SmallGrid(Norm):
    """Upper bound of sup_w ||E(w)||, so of a convolution of any size, from a grid that does not grow with the image.

    Between grid points a trigonometric polynomial of degree d = (taps - 1)/2 cannot rise far: near a maximum M it stays
    above M cos(d t) (Riesz; a matrix through u* E v), so with n points on an axis
        sup_w ||E(w)|| <= prod_axes 1/cos(pi d/n) x max over the grid of ||E(w)||.
    n is the least for which the product is at most 1 + `rtol`; on an axis whose torus is smaller than that, the torus
    itself is the grid, with factor 1.

    Guarantee: UPPER. Cost: as `Circulant` on the small grid, at most about (pi d)^2 axes/(2 rtol) points in two
    dimensions.
    References: Pfister and Bresler 2018 and Delattre et al. 2024 for grids; the factor 1/cos, and half-integer d, are
    ours; the published factor lacks a 2 (docs/errata.md).
    """

    rtol: float = 5e-3
    inner: BlockNorm = field(default_factory=lambda: Cholesky(rtol=1e-3, steps=40))

    def __post_init__(self) -> None:
        if not 1e-6 <= self.rtol < 1:
            raise ArgumentError(f"SmallGrid.rtol must lie in [1e-6, 1), got {self.rtol}.")

    def __str__(self) -> str:
        return f"symbol on a small grid (+{self.rtol:.1%}) by {self.inner}"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        curved = sum(t > 1 for t in first.taps)
        grid: list[int] = []
        factor = 1.0
        for taps, torus in zip(first.taps, first.torus, strict=True):
            degree = (taps - 1) / 2
            points = 1 if taps == 1 else points_for(degree, (1 + self.rtol) ** (1 / curved))
            grid.append(min(points, torus))
            if points < torus:
                factor *= between(degree, points)
        return over_grid(self, first, kernels, self.inner, tuple(grid), factor, exact=False)


def between(degree: float, points: int) -> float:
    """1/cos(pi degree/points), rounded up: how far a polynomial can rise between the points of one axis."""
    return (1 + ROUNDINGS_32) / math.cos(math.pi * degree / points)


def points_for(degree: float, factor: float) -> int:
    """The least number of points for which `between` stays below `factor`."""
    points = math.ceil(math.pi * degree / math.acos(1 / factor))
    # Riesz needs the nearest point within a quarter period.
    return max(points, math.floor(2 * degree) + 1)
