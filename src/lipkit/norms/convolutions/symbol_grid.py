"""Norms of convolutions from their symbol on grids of frequencies: that of the torus, or a few."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from lipkit._runtime import refuse_late, seconds_left
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.linops import LinearOperator, Shape, Symbol, symbol
from lipkit.norms._base import BlockNorm, Enclosure, Norm, refuse_state
from lipkit.norms.cholesky import Cholesky
from lipkit.norms.svd import SVD
from lipkit.rounding.float64 import gamma, log_down, log_up, normalize, round_log, widen_log
from lipkit.rounding.slacks import ROUNDINGS_32

# Complex numbers of the symbol held at once; a gibibyte and a few copies of it.
_CHUNK = 2**26
# The same where the time is limited: the clock is read between chunks.
_SHORT_CHUNK = 2**20


def symbols(ops: Sequence[LinearOperator]) -> tuple[Symbol, Tensor]:
    """The symbol of the first operator, in float64, and the kernels of all (they share one geometry)."""
    every = [symbol(op.to(torch.float64)) for op in ops]
    return every[0], torch.stack([one.kernel for one in every])


def over_grid(
    method: Norm, first: Symbol, kernels: Tensor, inner: BlockNorm, grid: Shape, factor: float, exact: bool
) -> list[Bound]:
    """Bounds factor x gain x max over the grid of ||E(w)||, the maximum taken by `inner`; with gradient.

    `exact` says that without rounding and with an exact `inner` there would be equality, so that the other side of the
    enclosure is a lower bound too. Only the block that carries the maximum is differentiated: memory does not grow with
    the grid.
    """
    kernels, exponent = normalize(kernels, method)
    with torch.no_grad():
        enclosure, point, group = _largest(first, kernels.detach(), inner, grid)
        error = replace(first, kernel=kernels).error()
        gain, ones = math.log(first.gain * factor * (1 + gamma(16))), torch.ones_like(exponent)
        widest = widen_log(enclosure.log_upper, error, 1.0) + gain + log_up(ones, exponent)
        log_upper = round_log(widest, Kind.UPPER.side)
        lower: list[Bound | None] = [None] * len(kernels)
        if exact:
            least = math.log(first.gain * factor * (1 - gamma(32)))
            narrowest = widen_log(enclosure.log_lower, error, -1.0) + least + log_down(ones, exponent)
            lower = [Bound(one, Kind.LOWER, method) for one in round_log(narrowest, Kind.LOWER.side)]
    if kernels.requires_grad:
        blocks = torch.stack(
            [
                replace(first, kernel=k).at(point[i : i + 1], grid)[0, g]
                for i, (k, g) in enumerate(zip(kernels, group, strict=True))
            ]
        )
        gradient = inner.attach_gradient(blocks, enclosure)
        log_upper = log_upper + torch.where(torch.isfinite(gradient), gradient - gradient.detach(), 0.0)
    kind = Kind.EXACT if exact and inner.kind is Kind.EXACT else Kind.UPPER
    return [Bound(one, kind, method, lower=below) for one, below in zip(log_upper, lower, strict=True)]


def _largest(first: Symbol, kernels: Tensor, inner: BlockNorm, grid: Shape) -> tuple[Enclosure, Tensor, list[int]]:
    """The enclosure of the largest block over all frequencies and groups, its frequency and its group, per operator."""
    points = first.frequencies(grid)
    count, groups = kernels.shape[:2]
    every = replace(first, kernel=kernels)
    held = _CHUNK if seconds_left() == math.inf else _SHORT_CHUNK
    width = max(1, held // math.prod(kernels.shape[:4]))
    best: Enclosure | None = None
    index = torch.zeros(count, dtype=torch.int64, device=kernels.device)
    for i in range(0, len(points), width):
        refuse_late()
        blocks = every.at(points[i : i + width], grid).flatten(1, 2)
        found = inner.enclose(blocks)
        better = torch.ones_like(index, dtype=torch.bool) if best is None else found.log_upper > best.log_upper
        best = found if best is None else _merge(best, found, better)
        index = torch.where(better, found.block + i * groups, index)
    assert best is not None
    return best, points[(index // groups).cpu()], (index % groups).tolist()


def _merge(old: Enclosure, new: Enclosure, better: Tensor) -> Enclosure:
    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(better.reshape(-1, *(1,) * (a.ndim - 1)), b, a)

    return Enclosure(
        pick(old.log_upper, new.log_upper),
        torch.maximum(old.log_lower, new.log_lower),
        pick(old.block, new.block),
        pick(old.left, new.left),
        pick(old.right, new.right),
    )


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


@final
@dataclass(frozen=True)
class Circulant(Norm):
    """The norm of a convolution from its symbol on the torus that carries it, max_w ||E(w)||, `inner` taking each norm.

    Circular padding of an input whose size the stride divides: the Fourier transform block-diagonalises the operator,
    so this is its norm, EXACT with an exact `inner`. Zero padding: n points with p zeros on either side are part of a
    torus of n + p points, so the operator is a corner of the circulant one and the value is an upper bound, with no
    factor and never above the supremum of the symbol. Reflect and replicate padding add the norm of the copying.

    Guarantee: EXACT or UPPER, all rounding counted. Cost: about half as many blocks (out/groups x in/groups stride^2)
    as the torus has points. Gradient: through the largest block only, so memory is flat.
    References: Sedghi, Gupta, Long 2019; Delattre et al. 2023. The corner argument for zero padding is ours.
    """

    inner: BlockNorm = field(default_factory=SVD)

    def __str__(self) -> str:
        return f"symbol on the torus by {self.inner}"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        # With a single tap the symbol is constant along that axis.
        grid = tuple(n if taps > 1 else 1 for n, taps in zip(first.torus, first.taps, strict=True))
        return over_grid(self, first, kernels, self.inner, grid, 1.0, first.exact)
