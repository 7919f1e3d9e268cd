"""Moving positions into channels and back: permutations of entries."""

from typing import final

from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.core.known_constants import EveryNorm, Isometric


@final
class SpaceToDepth(EveryNorm, Isometric):
    """Each block of block x ... x block positions becomes channels: (C, n, m) -> (C block^2, n/block, m/block).

    A permutation of entries: constant 1 (exact), and it loses nothing, unlike a stride. In two dimensions it is
    nn.PixelUnshuffle; `dims` trailing axes are blocked. Sizes must be multiples of the block.

    Args:
        block: Side of a block of positions.
        dims: Number of trailing axes that are blocked.
    """

    def __init__(self, block: int, dims: int = 2) -> None:
        super().__init__()
        self.block, self.dims = _check_block(block, dims)

    def forward(self, x: Tensor) -> Tensor:
        """The rearranged entries."""
        b, n = self.block, self.dims
        spatial = x.shape[-n:]
        if any(size % b for size in spatial):
            raise ShapeError(
                f"SpaceToDepth({b}) needs sizes that {b} divides, got {tuple(spatial)}; pad or crop first."
            )
        # (..., C, n1, n2) -> (..., C, n1/b, b, n2/b, b) -> (..., C, b, b, n1/b, n2/b)
        split = x.reshape(*x.shape[:-n], *(part for size in spatial for part in (size // b, b)))
        lead = x.ndim - n
        order = (*range(lead), *range(lead + 1, lead + 2 * n, 2), *range(lead, lead + 2 * n, 2))
        return split.permute(order).flatten(lead - 1, lead + n - 1)


@final
class DepthToSpace(EveryNorm, Isometric):
    """The inverse of `SpaceToDepth`: (C block^2, n, m) -> (C, n block, m block).

    A permutation of entries: constant 1 (exact). In two dimensions it is nn.PixelShuffle. The number of channels must
    be a multiple of block^dims.

    Args:
        block: Side of a block of positions.
        dims: Number of trailing axes that are blocked.
    """

    def __init__(self, block: int, dims: int = 2) -> None:
        super().__init__()
        self.block, self.dims = _check_block(block, dims)

    def forward(self, x: Tensor) -> Tensor:
        """The rearranged entries."""
        b, n = self.block, self.dims
        lead = x.ndim - n
        if x.shape[lead - 1] % b**n:
            raise ShapeError(
                f"DepthToSpace({b}, dims={n}) needs a number of channels that {b**n} divides, got {x.shape[lead - 1]}."
            )
        split = x.unflatten(lead - 1, (-1, *(b,) * n))
        order = [*range(lead)]
        for axis in range(n):
            order += [lead + n + axis, lead + axis]
        return split.permute(order).reshape(*split.shape[:lead], *(size * b for size in x.shape[lead:]))


def _check_block(block: int, dims: int) -> tuple[int, int]:
    if block < 1 or dims < 1:
        raise ArgumentError(f"Space and depth are exchanged in blocks >= 1 and dims >= 1, got {block} and {dims}.")
    return block, dims
