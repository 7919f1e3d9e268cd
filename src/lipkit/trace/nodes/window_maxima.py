"""Maxima over windows that may overlap: max pooling and running maxima."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import ROUNDINGS_4
from lipkit.trace.nodes._base import Node


@final
@dataclass(frozen=True, eq=False)
class WindowMax(Node):
    """y[..., w] = max over i in window w of z[..., i], on the last axis.

    `windows` lists the positions of each window; a place that is not used repeats another one of the same window.
    With |y_w - y'_w| <= max_{i in w} |z_i - z'_i|, sums over windows count each input `count` times at most, so
        Lip = count^(1/p):  count in l1, sqrt(count) in l2, 1 in linf,
    where count is the largest number of windows that hold one input; attained where that input is the largest of all
    its windows. On a box an input counts only for windows in which it can be the largest. `contested` is that number
    (None: on the whole space).
    """

    size: Shape
    windows: Int64[Tensor, "count width"]
    contested: int | None = None

    def __post_init__(self) -> None:
        if not (self.size and self.windows.numel()):
            raise ArgumentError(f"WindowMax needs an axis and a window, got {self.size} and none.")
        if self.windows.min() < 0 or self.windows.max() >= self.size[-1]:
            raise ArgumentError(f"The windows must hold positions in 0..{self.size[-1] - 1}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return (*self.size[:-1], self.windows.shape[0])

    @property
    def count(self) -> int:
        """The largest number of windows that one input can decide."""
        if self.contested is not None:
            return self.contested
        return int(self._covers(torch.ones_like(self.windows, dtype=torch.bool)).max())

    @property
    def roundings(self) -> float:
        return 0.0

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self._gather(z).amax(-1)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        return log_up(torch.tensor(float(self.count), dtype=torch.float64)) / p

    def within(self, reach: Reach) -> "WindowMax":
        reach = tighten(reach)
        # An input whose upper end lies below another's lower end is never the largest of that window.
        able = self._gather(reach.high) >= self._gather(reach.low).amax(-1, keepdim=True)
        return replace(self, contested=int(self._covers(able).max()))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        low, high, center = (self(x[None])[0] for x in (reach.low, reach.high, reach.center))
        # The square root is rounded once, the product once more.
        factor = math.sqrt(self.within(reach).count) * (1 + ROUNDINGS_4)
        return reach_of(low, high, center, reach.radius * factor)

    def _gather(self, z: Tensor) -> Tensor:
        return z[..., self.windows.to(z.device)]

    def _covers(self, able: Tensor) -> Tensor:
        """In how many windows each input is able; `able` has the shape of the gathered windows."""
        at, order = self.windows.to(able.device).sort(-1)
        # In sorted order a repeated position stands behind itself, and is not counted again.
        fresh = torch.cat([torch.ones_like(at[:, :1], dtype=torch.bool), at[:, 1:] != at[:, :-1]], 1)
        counted = (able.gather(-1, order.expand(able.shape)) & fresh).flatten(-2).to(torch.int64)
        total = torch.zeros((*counted.shape[:-1], self.size[-1]), dtype=torch.int64, device=able.device)
        return total.index_add(-1, at.flatten(), counted)

    def __str__(self) -> str:
        return "max over windows"
