"""A function of slopes -1 and 1 that stays near a line of any slope between."""

from typing import final

import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.core.known_constants import EveryNorm, Isometric


@final
class TriangularStairs(EveryNorm, Isometric):
    """Zigzag of width `width` with slopes 1 and -1 around the line of slope `slope`, |slope| <= 1.

    With a = (1 + slope)/2, r = x/width - n the position on stair n = floor(x/width), and S(r) = min(r, 2 a - r),
        f(x) = width (n (2 a - 1) + S(r)),    |f(x) - slope x| <= width (1 - slope^2) / 2.
    It shows what functions with unit gradient can do: they approach every 1-Lipschitz function of one variable.

    Guarantee: constant 1 (exact): the slope is 1 or -1 everywhere, which keeps norms of gradients. The printed second
    branch a - r would not be continuous. The derivative at a peak is torch's, the mean of both.

    Args:
        slope: Slope of the line that the zigzag follows, in [-1, 1].
        width: Width of one stair, in units of the input.
    """

    def __init__(self, slope: float, width: float = 1.0) -> None:
        super().__init__()
        if not (-1 <= slope <= 1 and width > 0):
            raise ArgumentError(f"TriangularStairs needs -1 <= slope <= 1 and width > 0, got {slope} and {width}.")
        self.slope = slope
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """The zigzag at x."""
        turn = (1 + self.slope) / 2
        stair = (x.detach() / self.width).floor()
        inside = x / self.width - stair
        return self.width * (stair * (2 * turn - 1) + torch.minimum(inside, 2 * turn - inside))
