"""Multiplication by a learnt number."""

import math
from typing import final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.activations.prelu import slopes_from
from lipkit.nn.core.known_constants import SAFE, EveryNorm
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class LearnedScale(EveryNorm):
    """x -> c x with a learnt number c = `most` sin(raw), `start` at first.

    Behind a layer of norm one it learns the norm apart from the direction: Linear(n, m, method=Spectral()) followed by
    it is (c / ||W||) W, which is known as sigma-reparametrisation.

    Guarantee: constant `most` for all time, which is `gain`; |c| at this moment, which is declared. Cost: one pass.
    Reference: Zhai et al. 2023, without a bound on c; that is ours.

    Args:
        start: The number at the start, between -most and most.
        most: The largest |c|.
    """

    def __init__(
        self,
        start: float = 1.0,
        most: float = 2.0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 < most < math.inf or not abs(start) <= most:
            raise ArgumentError(
                f"LearnedScale needs a finite most > 0 and a start between -most and most, got most = {most} and "
                f"start = {start}."
            )
        self.most = most
        self.raw = nn.Parameter(torch.tensor(math.asin(start / most), device=device, dtype=dtype))

    @property
    def gain(self) -> float:
        """most."""
        return self.most

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """|c| at this moment, rounded up. Gradient: reaches the number."""
        size = slopes_from(self.raw).to(torch.float64).abs() * self.most
        return Bound.from_value(size * (1 + ROUNDINGS_32), Kind.UPPER, "number of LearnedScale")

    def forward(self, x: Tensor) -> Tensor:
        """c x."""
        return x * slopes_from(self.raw).to(x.dtype) * (self.most * SAFE)
