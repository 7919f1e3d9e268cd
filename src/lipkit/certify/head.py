"""The pairwise constants of a classifier from its last linear layer."""

from lipkit.bound import Bound
from lipkit.bounds import Auto, Method, PairwiseHead
from lipkit.bounds.lipschitz import Example, Model, pairwise
from lipkit.regions import Everywhere, Region


def head_pairwise(
    model: Model, example: Example = None, method: Method | None = None, region: Region = Everywhere()
) -> Bound:
    """K_ab = ||w_a - w_b|| L for all pairs of classes: rows of the last linear layer, `method` for what is before it.

    For a trunk of 1-Lipschitz layers this is what `radius` should be given: sqrt(2) ||W|| L, the constant of the whole
    map, counts the longest row for every pair. Guarantee: UPPER. Cost: `method`, by default `bounds.Auto()`.
    Reference: Tsuzuku et al. 2018.
    """
    return pairwise(model, example, PairwiseHead(Auto() if method is None else method), region)
