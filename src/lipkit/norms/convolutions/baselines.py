"""Published bounds of convolutions, for comparison; each with the kind it deserves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Dense, LinearOperator
from lipkit.norms._base import BlockNorm, Norm, positive_int, refuse_state
from lipkit.norms.convolutions.symbol_grid import over_grid, symbols
from lipkit.norms.frobenius import Frobenius
from lipkit.norms.gram import Gram
from lipkit.norms.svd import SVD
from lipkit.rounding.float64 import gamma, round_log


@final
@dataclass(frozen=True)
class FantasticFour(Norm):
    """sqrt(taps) times the smallest norm of the kernel reshaped to a matrix, each axis with the rows or with the
    columns.

    Guarantee: UPPER, because `inner` is; the authors use power iteration, which can come out below the norm.
    Reference: Singla and Feizi, ICLR 2021.
    """

    inner: BlockNorm = field(default_factory=SVD)

    def __str__(self) -> str:
        return f"reshaped kernel times sqrt(taps), by {self.inner}"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        factor = math.log(math.sqrt(math.prod(first.taps)) * first.gain * (1 + gamma(4)))
        bounds: list[Bound] = []
        for kernel in kernels:
            options = [
                torch.stack([one.log_value for one in self.inner.many([Dense(group) for group in shaped])]).max()
                for shaped in _reshapes(kernel)
            ]
            bounds.append(Bound(round_log(torch.stack(options).min() + factor, Kind.UPPER.side), Kind.UPPER, self))
        return bounds


@final
@dataclass(frozen=True)
class LipGrid(Norm):
    """max over a grid of `points` frequencies an axis of ||E(w)||_F, divided by 1 - 2 d/points, d = (taps - 1)/2.

    Guarantee: UPPER for one and two axes and points >= 4 d, where 1 - 2x <= cos(pi x)^2; exact in the limit for one
    channel.
    Reference: Araujo, Negrevergne, Chevaleyre, Atif, AAAI 2021.
    """

    points: int = 50

    def __post_init__(self) -> None:
        positive_int("LipGrid.points", self.points)

    def __str__(self) -> str:
        return f"Frobenius norms on a grid of {self.points} points an axis"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        degree = (max(first.taps) - 1) / 2
        if len(first.taps) > 2:
            raise UnsupportedError(f"LipGrid covers one or two spatial axes, got {len(first.taps)}; use SmallGrid.")
        if self.points < 4 * degree:
            raise ArgumentError(f"LipGrid needs points >= {4 * degree:g} for this kernel, got {self.points}.")
        factor = (1 + gamma(4)) / (1 - 2 * degree / self.points)
        return over_grid(self, first, kernels, Frobenius(), (self.points,) * len(first.taps), factor, exact=False)


@final
@dataclass(frozen=True)
class PublishedGrid(Norm):
    """Gram iteration on a grid of `points` frequencies an axis with the published factor (1 - alpha)^(-2^-(steps+1)).

    alpha = 2^(steps+1) floor(taps/2) / points. The proof needs 2 alpha, and the formula fails for few points
    (docs/errata.md), so: ESTIMATE. For reproducing published figures; `SmallGrid` is the bound.
    Reference: Delattre, Barthelemy, Allauzen 2024, theorem on smaller grids.
    """

    points: int = 64
    steps: int = 4

    def __str__(self) -> str:
        return f"published small-grid factor, {self.points} points an axis, {self.steps} Gram steps"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        alpha = 2 ** (self.steps + 1) * (max(first.taps) // 2) / self.points
        if alpha >= 1:
            raise ArgumentError(f"PublishedGrid needs more than {alpha * self.points:g} points, got {self.points}.")
        factor = (1 - alpha) ** -(2.0 ** -(self.steps + 1))
        bounds = over_grid(
            self, first, kernels, Gram(self.steps), (self.points,) * len(first.taps), factor, exact=False
        )
        return [Bound(bound.log_value, Kind.ESTIMATE, self) for bound in bounds]


@final
@dataclass(frozen=True)
class ReshapedKernel(Norm):
    """The norm of the kernel as a matrix (out) x (in taps): what many libraries call the spectral norm of a
    convolution.

    Guarantee: ESTIMATE. It is the norm of another operator; the convolution's is up to sqrt(taps) larger.
    """

    inner: BlockNorm = field(default_factory=SVD)

    def __str__(self) -> str:
        return f"norm of the reshaped kernel by {self.inner}"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        _, kernels = symbols(ops)
        bounds: list[Bound] = []
        for kernel in kernels:
            groups = self.inner.many([Dense(group.flatten(1)) for group in kernel])
            bounds.append(Bound(torch.stack([one.log_value for one in groups]).max(), Kind.ESTIMATE, self))
        return bounds


def _reshapes(kernel: Tensor) -> list[Tensor]:
    """(groups, rows, cols, *taps) as matrices in all 2^axes ways."""
    axes = range(3, kernel.ndim)
    found: list[Tensor] = []
    for sides in product((True, False), repeat=len(axes)):
        with_rows = [a for a, side in zip(axes, sides, strict=True) if side]
        with_cols = [a for a, side in zip(axes, sides, strict=True) if not side]
        rows = kernel.shape[1] * math.prod(kernel.shape[a] for a in with_rows)
        found.append(kernel.permute(0, 1, *with_rows, 2, *with_cols).reshape(len(kernel), rows, -1))
    return found
