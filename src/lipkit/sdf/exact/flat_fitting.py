"""Flats near points: k-means, then in turns principal directions and assignments."""

from collections.abc import Callable
from typing import Final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.sdf.exact.points import Points

_KMEANS_ROUNDS: Final = 10
# Principal directions with less than this share of the largest spread are noise of rounding.
_NEGLIGIBLE = 2.0**-20

Assign = Callable[[Tensor, Tensor], Int64[Tensor, " n"]]


def fit_flats(
    points: Float64[Tensor, "n d"], count: int, dim: int, rounds: int, seed: int, assign: Assign
) -> tuple[Float64[Tensor, "m d"], Float64[Tensor, "m q d"]]:
    """Origins and bases; `assign` finds the nearest flat of every point."""
    random = generator(seed)
    centers = _spread(points, count, random)
    owner = Points(centers).nearest(points).index[:, 0]
    for _ in range(_KMEANS_ROUNDS):
        centers = torch.stack([part.mean(0) for part in _parts(points, owner, count, random)])
        owner = Points(centers).nearest(points).index[:, 0]
    origins, bases = _fitted(points, owner, count, dim, random)
    for _ in range(rounds):
        origins, bases = _fitted(points, assign(origins, bases), count, dim, random)
    return origins, bases


def _fitted(points: Tensor, owner: Tensor, count: int, dim: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    origins, bases = zip(*(_principal(part, dim) for part in _parts(points, owner, count, random)), strict=True)
    return torch.stack(origins), torch.stack(bases)


def _spread(points: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Points drawn one after the other with probabilities proportional to the squared distance to those drawn."""
    first = int(torch.randint(len(points), (1,), generator=random))
    chosen, squares = [first], (points - points[first]).square().sum(1)
    while len(chosen) < count:
        # Where all points are drawn already or repeat each other, any will do.
        weights = squares if bool(squares.sum() > 0) else torch.ones_like(squares)
        chosen.append(int(torch.multinomial(weights.cpu(), 1, generator=random)))
        squares = torch.minimum(squares, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen]


def _parts(points: Tensor, owner: Tensor, count: int, random: torch.Generator) -> list[Tensor]:
    parts = [points[owner == i] for i in range(count)]
    # Whatever lost all its points begins anew at one of them.
    return [part if len(part) else points[torch.randint(len(points), (1,), generator=random)] for part in parts]


def _principal(part: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The mean and the directions of largest spread, rows of zeros where the points span fewer."""
    origin = part.mean(0)
    _, sizes, directions = torch.linalg.svd(part - origin, full_matrices=False)
    kept = directions[:dim] * (sizes[:dim, None] > _NEGLIGIBLE * sizes[:1, None])
    return origin, torch.cat([kept, kept.new_zeros(dim - len(kept), part.shape[1])])
