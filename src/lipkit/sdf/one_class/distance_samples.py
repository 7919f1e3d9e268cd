"""Points around rows, and their distances to the rows: what a network learns the distance from."""

import torch
from jaxtyping import Float
from torch import Tensor


def draw_around(rows: Float[Tensor, "n d"], count: int, source: torch.Generator) -> Float[Tensor, "m d"]:
    """Points near and far from the rows, a fifth from each of five proposals.

        noise        x + s u N(0, I), s the root mean variance of the columns
        differences  x + u (y - z): noise with the correlations of the rows
        crossovers   each column from x or from y: single columns that do not fit together
        stretched    the mean plus 3 u (x - mean)
        shuffled     each column from a row of its own

    x, y, z are random rows, u is uniform in [0, 1], one for each point. Cost: five numbers for each coordinate.
    """
    n, d = rows.shape
    each = -(-count // 5)

    def pick() -> Tensor:
        return rows[torch.randint(n, (each,), device=rows.device, generator=source)]

    def share(width: int = 1) -> Tensor:
        return torch.rand(each, width, dtype=rows.dtype, device=rows.device, generator=source)

    mean = rows.mean(0)
    spread = (rows - mean).square().mean().sqrt()
    white = torch.randn(each, d, dtype=rows.dtype, device=rows.device, generator=source)
    own = torch.randint(n, (each, d), device=rows.device, generator=source)
    proposals = (
        pick() + spread * share() * white,
        pick() + share() * (pick() - pick()),
        torch.where(share(d) < share(), pick(), pick()),
        mean + 3 * share() * (pick() - mean),
        rows.gather(0, own),
    )
    return torch.cat(proposals)[:count]


def distances(points: Float[Tensor, "m d"], rows: Float[Tensor, "n d"]) -> Float[Tensor, " m"]:
    """The distance of each point to the nearest row: a target of training, not a certified number.

    Cost: one product of the two tables. Guarantee: none, squares are subtracted; `sdf.Points` counts its rounding.
    """
    gap = torch.addmm(rows.square().sum(1), points, rows.T, alpha=-2).amin(1) + points.square().sum(1)
    return gap.clamp(min=0).sqrt()
