"""The absolute value."""

from typing import final

from torch import Tensor

from lipkit.nn.core.known_constants import EveryNorm, Isometric


@final
class Absolute(EveryNorm, Isometric):
    """|x|: slope -1 or 1, so norms of inputs and, away from zero, of gradients are kept.

    Guarantee: constant 1 in every l_p (exact). The derivative at 0 is torch's, 0. It is not monotone: it must not stand
    inside convex potential layers, whose proof needs slopes in [0, 1].
    """

    def forward(self, x: Tensor) -> Tensor:
        """|x|."""
        return x.abs()
