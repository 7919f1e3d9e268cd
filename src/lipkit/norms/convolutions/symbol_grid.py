"""The largest norm of a symbol over a grid of frequencies."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lipkit._deadline import refuse_late
from lipkit.bound import Bound, Kind
from lipkit.linops import LinearOperator, Shape, Symbol, symbol
from lipkit.norms._base import BlockNorm, Enclosure, Norm
from lipkit.rounding.float64 import gamma, log_down, log_up, normalize, round_log, widen_log

# Complex numbers of the symbol held at once; a gibibyte and a few copies of it.
_CHUNK = 2**26


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
    width = max(1, _CHUNK // math.prod(kernels.shape[:4]))
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
