"""Triangles cut into pieces that are small and not thin, by halving their longest edges."""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


def halve(corners: Float64[Tensor, "n 3 3"]) -> Float64[Tensor, "m 3 3"]:
    """Both halves of each triangle, cut from the middle of its longest edge; the first halves come first."""
    longest = edge_lengths(corners).argmax(1)
    # Brought into the order of start and end of the longest edge, and the corner opposite to it.
    turn = (longest[:, None] + torch.arange(3, device=corners.device)) % 3
    a, b, c = corners.gather(1, turn[:, :, None].expand(-1, -1, 3)).unbind(1)
    middle = (a + b) / 2
    return torch.cat([torch.stack([a, middle, c], 1), torch.stack([middle, b, c], 1)])


def edge_lengths(corners: Float64[Tensor, "n 3 3"]) -> Float64[Tensor, "n 3"]:
    """Lengths of the edges of each triangle, each from a corner to the next one."""
    return torch.linalg.vector_norm(corners.roll(-1, 1) - corners, dim=2)


def cut(
    corners: Float64[Tensor, "n 3 3"], longest: float, most: int
) -> tuple[Float64[Tensor, "m 3 3"], Int64[Tensor, " m"]]:
    """Pieces with edges up to `longest`, and the triangle that each is of; at most twice `most` pieces, then longer."""
    source = torch.arange(len(corners))
    while True:
        long = edge_lengths(corners).amax(1) > longest
        if not bool(long.any()) or len(corners) > most:
            return corners, source
        corners = torch.cat([corners[~long], halve(corners[long])])
        source = torch.cat([source[~long], source[long], source[long]])
