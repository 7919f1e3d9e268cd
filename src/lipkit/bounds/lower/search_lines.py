"""Lines through a region, on points that floating-point numbers represent exactly."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Ball, Box, Region
from lipkit.rounding.float64 import gamma
from lipkit.trace import Network

# Entries that are evaluated together; the spread of the points on the whole space, in turn.
_CHUNK_ENTRIES = 2**22
_SCALES = (1.0, 0.25, 4.0, 16.0, 64.0)
# Points stay away from the border of a ball by this part of its radius, so that rounding does not take them out.
_MARGIN = 2.0**-20


@final
@dataclass(frozen=True)
class CounterexampleSearch:
    """How hard counter-examples are looked for: `lines` random lines with 2^`halvings` + 1 points each.

    A search can only disprove; what it does not find may exist. Its points are the same for the same `seed`.
    """

    lines: int = 48
    halvings: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lines < 0 or not 1 <= self.halvings <= 16:
            raise ArgumentError(
                f"CounterexampleSearch needs lines >= 0 and halvings in 1..16, got {self.lines}, {self.halvings}."
            )

    def through(self, network: Network, region: Region) -> Iterator[Float64[Tensor, "lines points ..."]]:
        """Lines in the region, some at a time, each with points a + i s, i = 0, 1, ...; all sums are exact."""
        device = next((t.device for t in network.tensors()), torch.device("cpu"))
        generator = torch.Generator(device="cpu").manual_seed(self.seed)
        points = 2**self.halvings + 1
        widest = max(math.prod(network.shape_into(k)) for k in range(1, network.sink + 1))
        some = max(1, _CHUNK_ENTRIES // (points * max(widest, math.prod(network.source))))
        found: list[Tensor] = []
        for number in range(self.lines):
            ends = [_point(region, network.source, generator, number) for _ in range(2)]
            line = _line(ends[0], ends[1], points).to(device)
            if isinstance(region, Box):
                # A coordinate that cannot move is kept as it is, on the grid or not.
                fixed = (region.low == region.high).to(device)
                line = torch.where(fixed, region.low.detach().to(line), line)
            # Grid points near the border may lie outside.
            if bool(contains(region, line).all()) and bool((line[0] != line[-1]).any()):
                found.append(line)
            if found and (len(found) == some or number == self.lines - 1):
                yield torch.stack(found)
                found = []


def _line(start: Tensor, end: Tensor, points: int) -> Float64[Tensor, "points ..."]:
    """Equal steps on a grid so coarse that every point is a multiple of it by less than 2^50."""
    unit = torch.exp2(torch.frexp(torch.maximum(start.abs(), end.abs())).exponent.double() - 46)
    start, step = unit * (start / unit).round(), unit * ((end - start) / (unit * (points - 1))).round()
    return start + torch.arange(points, dtype=torch.float64).reshape(-1, *(1,) * start.ndim) * step


def _point(region: Region, shape: Shape, generator: torch.Generator, number: int) -> Tensor:
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    match region:
        case Ball(center, radius, p):
            share = torch.rand((), dtype=torch.float64, generator=generator) ** (1 / max(1, noise.numel()))
            length = torch.linalg.vector_norm(noise, ord=p).clamp(min=1e-300)
            return center.detach().double().cpu() + radius * (1 - _MARGIN) * share * noise / length
        case Box(low, high):
            share = torch.rand(shape, dtype=torch.float64, generator=generator)
            low, high = (end.detach().double().cpu() for end in (low, high))
            return low + (high - low) * share
        case _:
            return noise * _SCALES[number % len(_SCALES)]


def contains(region: Region, points: Float64[Tensor, "points ..."]) -> Tensor:
    """Which points are proven to lie in the region."""
    match region:
        case Ball(center, radius, p):
            offset = (points - center.detach().to(points)).flatten(1)
            slack = gamma(8 * offset.shape[1] + 64)
            lengths = torch.linalg.vector_norm(offset, ord=p, dim=1)
            return lengths * (1 + slack) <= radius
        case Box(low, high):
            low, high = (end.detach().to(points) for end in (low, high))
            return ((points >= low) & (points <= high)).flatten(1).all(1)
        case _:
            return torch.ones(len(points), dtype=torch.bool, device=points.device)
