"""Maxima and minima over windows with their ties rounded off."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import center_in_box, reach_of
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import ROUNDINGS_4, ROUNDINGS_8, ROUNDINGS_128
from lipkit.trace import Reach
from lipkit.trace.nodes import Node


@final
@dataclass(frozen=True, eq=False)
class SoftMaximum(Node):
    """y[..., w] = s mu log sum over i in window w of exp(s z[..., i] / mu), on the last axis: s = 1 max, s = -1 min.

        max <= y <= max + mu log n  for windows of n entries (mirrored for min);
    the rows of the Jacobian are probability vectors p, so Lip = count^(1/p) as for the maximum, where count is the
    largest number of windows with one entry; the Hessian of one y is (diag(p) - p p^T) / mu, of norm at most 1/(2 mu):
    the variance of the entries of a unit vector, no two of which differ by more than sqrt(2).

    `windows` lists positions; a repeated one counts once.
    """

    size: Shape
    windows: Int64[Tensor, "count width"]
    mu: float
    sign: int = 1

    def __post_init__(self) -> None:
        if not (self.mu > 0 and math.isfinite(self.mu)):
            raise ArgumentError(f"SoftMaximum needs a finite mu > 0, got {self.mu}.")
        if self.sign not in (1, -1):
            raise ArgumentError(f"SoftMaximum.sign is 1 for a maximum and -1 for a minimum, got {self.sign}.")

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return (*self.size[:-1], self.windows.shape[0])

    @property
    def error(self) -> Float64[Tensor, " count"]:
        """mu log n for each window, rounded up: how far it lies from the maximum at most."""
        return log_up(self._fresh().sum(1).to(torch.float64)) * self.mu * (1 + ROUNDINGS_8)

    @property
    def overlap(self) -> int:
        """The largest number of windows that hold one entry."""
        return int(self.windows.flatten()[self._fresh().flatten()].bincount().max())

    @property
    def curvature(self) -> float:
        """max over unit u, v of ||D^2 y[u, v]||, rounded up: at most overlap^(1/2) / (2 mu).

        One window alone has 1/(2 mu) ||u_w|| ||v_w||; sum_w ||u_w||^2 ||v_w||^2 <= overlap ||u||^2 ||v||^2.
        """
        return math.sqrt(self.overlap) / (2 * self.mu) * (1 + ROUNDINGS_8)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        gathered = z[..., self.windows.to(z.device)] * (self.sign / self.mu)
        gathered = gathered.masked_fill(~self._fresh().to(z.device), -torch.inf)
        return torch.logsumexp(gathered, -1) * (self.sign * self.mu)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        return log_up(torch.tensor(float(self.overlap), dtype=torch.float64)) / p

    def within(self, reach: Reach) -> "SoftMaximum":
        return self

    def reach(self, reach: Reach) -> Reach:
        # It rises with every entry. A sum of n exponentials and a logarithm: within 2^-46 of its size and of mu n.
        low, high, center = (self(x[None])[0] for x in (reach.low, reach.high, center_in_box(reach)))
        size = ROUNDINGS_128 * (torch.maximum(low.abs(), high.abs()) + self.mu * self.windows.shape[1])
        size = torch.where(torch.isfinite(size), size, 0.0)
        radius = reach.radius * math.sqrt(self.overlap) * (1 + ROUNDINGS_4) + torch.linalg.vector_norm(size) * 2
        return reach_of(low - size, high + size, center, radius)

    def _fresh(self) -> Tensor:
        """True where a window names a position for the first time."""
        same = self.windows[:, :, None] == self.windows[:, None, :]
        return ~torch.tril(same, diagonal=-1).any(-1)

    def __str__(self) -> str:
        return f"{'max' if self.sign > 0 else 'min'} smoothed by {self.mu:g}"
