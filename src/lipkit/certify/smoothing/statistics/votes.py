"""Votes in [0, 1] of the classes, read from samples."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True, eq=False)
class Votes:
    """Sums of n independent votes in [0, 1] and of their squares, for several classes of each input.

    Each sum may carry n roundings to float64, and a few more for the division by the mass.
    """

    total: Float64[Tensor, "batch entries"]
    squares: Float64[Tensor, "batch entries"]
    trials: Int64[Tensor, " batch"]

    def of(self, entry: Int64[Tensor, " batch"]) -> "Votes":
        """One entry of each input."""
        return Votes(self.total.gather(1, entry[:, None]), self.squares.gather(1, entry[:, None]), self.trials)


def label_of(samples: Samples, simplex: SimplexMap) -> Int64[Tensor, " batch"]:
    """The class with the largest mean vote of the samples that choose; the first of equals."""
    shares = selection_votes(samples, simplex).total
    if not isinstance(simplex, Hardmax):
        # Of other classes only the sum is known, so that no lower bound could follow.
        tracked = torch.zeros_like(shares, dtype=torch.bool).scatter(1, samples.tracked, True)
        shares = torch.where(tracked, shares, -1.0)
    return shares.argmax(1)


def selection_votes(samples: Samples, simplex: SimplexMap) -> Votes:
    """The votes of all classes in the samples that choose, divided by their mass."""
    batch, n0, classes = samples.selection.shape
    if not n0:
        raise ArgumentError("There are no samples to choose a class with; draw n0 >= 1 of them.")
    trials = torch.full((batch,), n0, dtype=torch.int64, device=samples.selection.device)
    if isinstance(simplex, Hardmax):
        winners = samples.selection.argmax(-1)
        counts = samples.counts.new_zeros((batch, classes)).scatter_add(1, winners, torch.ones_like(winners)).double()
        return Votes(counts, counts, trials)
    votes = simplex(samples.selection).double() / simplex.mass
    return Votes(votes.sum(1), votes.square().sum(1), trials)


def votes_of(
    samples: Samples, simplex: SimplexMap, label: Int64[Tensor, " batch"]
) -> tuple[Votes, Int64[Tensor, " batch"]]:
    """The votes of the samples that prove, divided by their mass, and the entry of the label."""
    if isinstance(simplex, Hardmax):
        counts = samples.counts.double()
        return Votes(counts, counts, samples.spent), label
    for one in samples.moments:
        if one.map == simplex:
            entry = (samples.tracked == label[:, None]).long().argmax(1)
            return Votes(one.first / simplex.mass, one.second / simplex.mass**2, samples.spent), entry
    held = [one.map for one in samples.moments]
    raise ArgumentError(f"The samples hold no votes of {simplex}, only of {held}; declare it before you sample.")


def by_class(
    samples: Samples, simplex: SimplexMap, upper: Float64[Tensor, "batch entries"]
) -> Float64[Tensor, "batch classes"]:
    """Upper bounds of all classes from those of the entries; a class that is not tracked is at most the sum of them."""
    if isinstance(simplex, Hardmax):
        return upper
    classes = samples.counts.shape[1]
    return upper[:, -1:].expand(-1, classes).scatter(1, samples.tracked, upper[:, :-1])
