"""The pairwise constants of a classifier from its last linear layer."""

import math
from dataclasses import replace

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds import Auto, Method, PairwiseHead
from lipkit.bounds.lipschitz import Example, Model, pairwise
from lipkit.errors import ArgumentError, KindError, ShapeError
from lipkit.regions import Everywhere, Region
from lipkit.rounding.float64 import log_norm_ratio
from lipkit.rounding.slacks import ROUNDINGS_8


def head_pairwise(
    model: Model, example: Example = None, method: Method | None = None, region: Region = Everywhere()
) -> Bound:
    """K_ab = ||w_a - w_b|| L for all pairs of classes: rows of the last linear layer, `method` for what is before it.

    For a trunk of 1-Lipschitz layers this is what `radius` should be given: sqrt(2) ||W|| L, the constant of the whole
    map, counts the longest row for every pair. Guarantee: UPPER. Cost: `method`, by default `bounds.Auto()`.
    Reference: Tsuzuku et al. 2018.
    """
    return pairwise(model, example, PairwiseHead(Auto() if method is None else method), region)


def in_norm(bound: Bound, p: float, dimension: int) -> Bound:
    """Constants of pairs for inputs of n = `dimension` entries that are measured in l_p, from those in l_q.

        K_p = K_q max(1, n^(1/q - 1/p)),   since ||x||_q <= max(1, n^(1/q - 1/p)) ||x||_p

    Guarantee: UPPER if the bound certifies; attained for some linear maps. Cost: one product for each pair.
    """
    if bound.of is not Scope.PAIR or not bound.kind.certifies:
        raise KindError(f"Upper bounds for pairs are measured in another norm, got {bound}; use head_pairwise.")
    if not p >= 1 or type(dimension) is not int or not 1 <= dimension < 2**63:
        raise ArgumentError(f"A norm has p >= 1 and an input a whole number of entries, got p={p} and {dimension}.")
    if bound.subject is not None and math.prod(bound.subject.source) != dimension:
        raise ShapeError(
            f"The bound is of inputs of shape {bound.subject.source}, which do not have {dimension} entries; give "
            "the number of entries of one input."
        )
    q = bound.metric.p_in
    if p == q:
        return bound
    ratio = log_norm_ratio(q, p, dimension)
    # An exponential is off by a unit of its last digit.
    wider = bound.scale(math.exp(ratio) * (1 + ROUNDINGS_8)) if ratio else bound
    how = f"{bound.how}, in l{q:g}, enlarged"
    subject, draws = bound.subject, bound.draws
    return replace(
        wider, lower=None, witness=None, metric=Metric(p, p), kind=Kind.UPPER, method=how, subject=subject, draws=draws
    )
