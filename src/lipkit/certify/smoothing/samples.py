"""The results of sampling: everything that a certificate is computed from, without the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.certify.smoothing.noise import Noise
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the n samples of the votes F = tau(f) of one map, and of their squares, in float64.

    The last axis has the classes of `Samples.tracked` and, as one more entry, the sum of all other classes' votes.
    """

    map: SimplexMap
    first: Float64[Tensor, "batch entries"]
    second: Float64[Tensor, "batch entries"]


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """The votes of a batch of inputs under noise: a few to choose with, many to prove with.

    `selection` and the rest come from independent draws. So whatever is chosen with `selection` (the class, a map, a
    split of the error probability) is a constant for the statistics of the rest.

    Args:
        selection: The logits of the n0 samples that choose.
        counts: How many of the n samples have each class as their largest logit.
        spent: The number n of samples of each input behind `counts` and `moments`.
        tracked: The classes whose moments are kept, chosen with `selection`; all of them up to 64 classes.
        moments: One entry for each declared map, apart from `Hardmax`, of which `counts` says all.
        maps: The declared maps in their order; methods that use one map use the first.
        noise: The law that the samples were drawn with; radii by another law are refused.
        adaptive: Whether `spent` depends on the votes, as when easy inputs stop early. Then only intervals that hold at
            all times at once are valid, and methods refuse others.
    """

    selection: Float[Tensor, "batch n0 classes"]
    counts: Int64[Tensor, "batch classes"]
    spent: Int64[Tensor, " batch"]
    tracked: Int64[Tensor, "batch tracked"]
    moments: tuple[Moments, ...] = ()
    maps: tuple[SimplexMap, ...] = (Hardmax(),)
    adaptive: bool = False
    noise: Noise | None = None


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Batches of samples as one."""
    moments = tuple(
        Moments(same[0].map, torch.cat([one.first for one in same]), torch.cat([one.second for one in same]))
        for same in zip(*(part.moments for part in parts), strict=True)
    )
    selection, counts, spent, tracked = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("selection", "counts", "spent", "tracked")
    )
    adaptive, noise = any(part.adaptive for part in parts), parts[0].noise
    return Samples(selection, counts, spent, tracked, moments, parts[0].maps, adaptive, noise)
