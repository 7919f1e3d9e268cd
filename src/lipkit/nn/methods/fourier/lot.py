"""Orthogonal convolutions by projection in Fourier space."""

from dataclasses import dataclass
from typing import final

import torch

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import largest
from lipkit.nn.methods._base import Free
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.fourier._base import FourierMethod, Symbols


@final
@dataclass(frozen=True)
class LOT(FourierMethod):
    """Layer-wise orthogonal training: at each frequency w of the torus the polar factor of the symbol F of the kernel,

        Q(w) = (F(w) F(w)*)^(-1/2) F(w),

    the isometry nearest to F(w), by the iteration of `Bjorck` with its scaled steps: it needs products only, and 12 of
    them arrive from singular values of 1/2600 of a bound of the largest.

    Guarantee: norm at most 1 as stored, on images of `in_size` with circular padding; an isometry where the iteration
    arrives, which singular symbols do not. Reaches every kernel that is orthogonal on the torus and as small as the
    free numbers, and others. Cost: `Bjorck` on complex matrices, one for each frequency, which are half as many as
    positions; the layer multiplies in Fourier space.
    Gradient: through all steps.
    Reference: Xu, Li and Li 2022, with Newton's iteration in place of this one.

    Args:
        in_size: The size of the images, one number for each axis.
        steps: Iterations; each reaches singular values 2.6 times smaller.
    """

    scale_free = True

    in_size: Shape
    steps: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ArgumentError(f"LOT.steps must be at least 1, got {self.steps}.")

    def __str__(self) -> str:
        return f"LOT on {'x'.join(map(str, self.in_size))}, {self.steps} steps"

    def isometries(self, symbols: Symbols, geometry: Geometry) -> Symbols:
        return Bjorck(self.steps).matrix(symbols)

    def level(self, raw: Free) -> Free:
        # Numbers below 1 are scaled by the iteration, each frequency for itself.
        flat = raw.flatten(2)
        return (flat / largest(flat, 1.0)).reshape(raw.shape)

    def draw(self, geometry: Geometry) -> Free:
        """An isometry at the central tap, zero elsewhere."""
        return self.at_free_size(self.start(geometry).to(torch.float64))
