"""Every exported method for whole networks, and what it claims: the conformance suite and the soundness sweep run it.

A method that is exported by `lipkit.bounds` and missing here fails `tests/conformance/test_bounds.py`.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from lipkit.bound import L2, Kind, Metric
from lipkit.bounds import (
    CLEVER,
    DAG,
    Auto,
    Best,
    Condensed,
    DifferenceQuotient,
    ECLipsE,
    FastLip,
    GradientAscent,
    Linearization,
    LinearPieces,
    LipLT,
    LipMIP,
    LipSDP,
    Local,
    Method,
    Multipliers,
    Pairwise,
    PairwiseDAG,
    PairwiseHead,
    PairwiseLipLT,
    Product,
    Sampling,
    SeqLip,
    Smoothness,
)
from lipkit.bounds.sdp.diagonal_maximum import Greedy
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace.rewrites.fuse import Junctions, Nowhere

LINF = Metric(math.inf, math.inf)
METRICS = (Metric(1.0, 1.0), L2, LINF)
# Constructions of `bound_models` with nodes that are no functions of single entries.
_JOINT = frozenset({"maxima", "softmax", "normalised", "attention", "gate"})
BRANCHES = frozenset({"residual", "joined"})
_BOUNDED: tuple[type[Region], ...] = (Ball, Box)
_ALL: tuple[type[Region], ...] = (Everywhere, Ball, Box)


class Gradient(enum.Enum):
    """What the derivative of a bound in the weights is."""

    WHOLE = "the derivative of the number"
    FIXED = "the derivative at fixed multipliers, of another valid bound"
    NONE = "none: the number is detached"


@final
@dataclass(frozen=True)
class Claims:
    """What a method promises.

    Args:
        instances: the settings to try in a metric; none if it does not have that metric.
        kinds: what its bounds may be.
        affine: how far the first setting may be from the norm of an affine network, relatively; None if it may be far.
        gradient: what autograd gives.
        step: of the finite differences that the gradient is compared with.
        regions: where it answers at all.
        refuses: constructions of `bound_models` that it refuses wherever they are asked for.
        batched: whether a region of several samples gives a number for each.
        slow: whether one call takes more than some tens of milliseconds.
    """

    instances: Callable[[Metric], tuple[Method | Pairwise, ...]]
    kinds: frozenset[Kind] = frozenset({Kind.UPPER})
    affine: float | None = 1e-9
    gradient: Gradient = Gradient.WHOLE
    step: float = 1e-6
    regions: tuple[type[Region], ...] = _ALL
    refuses: frozenset[str] = frozenset()
    batched: bool = False
    slow: bool = False


_LOWER = frozenset({Kind.LOWER})
_PROVEN = frozenset({Kind.EXACT, Kind.UPPER})

CLAIMS: dict[type[Method | Pairwise], Claims] = {
    Product: Claims(lambda m: (Product(metric=m),), affine=None),
    DAG: Claims(lambda m: (DAG(metric=m), DAG(cut=Junctions(), metric=m), DAG(cut=Nowhere(), metric=m))),
    LipLT: Claims(
        lambda m: (
            LipLT(metric=m),
            LipLT(window=1, metric=m),
            *((LipLT(refine=True), LipLT(negligible=0.0)) if m == L2 else ()),
        )
    ),
    LipSDP: Claims(
        lambda m: (LipSDP(), LipSDP(Multipliers.PER_LAYER), LipSDP(split=1)) if m == L2 else (),
        affine=1e-6,
        step=1e-4,
        slow=True,
    ),
    ECLipsE: Claims(
        lambda m: (ECLipsE(),) if m == L2 else (), gradient=Gradient.FIXED, affine=1e-6, refuses=BRANCHES, slow=True
    ),
    SeqLip: Claims(
        lambda m: (SeqLip(), SeqLip(0), SeqLip(2, Greedy())) if m == L2 else (),
        kinds=frozenset({Kind.UPPER, Kind.ESTIMATE}),
        gradient=Gradient.NONE,
        refuses=BRANCHES,
        slow=True,
    ),
    Best: Claims(lambda m: (Best((Product(metric=m), LipLT(metric=m))),)),
    Auto: Claims(lambda m: (Auto(budget=1000.0, metric=m),), affine=1e-6, step=1e-4, batched=True, slow=True),
    Local: Claims(
        lambda m: (Local(DAG(metric=m)), Local(LipLT(metric=m)), *((Local(LipSDP()),) if m == L2 else ())),
        affine=1e-6,
        step=1e-4,
        regions=_BOUNDED,
        batched=True,
        slow=True,
    ),
    FastLip: Claims(
        lambda m: (FastLip(m),), gradient=Gradient.NONE, regions=_BOUNDED, refuses=_JOINT, batched=True, slow=True
    ),
    Condensed: Claims(
        lambda m: (Condensed(m),), gradient=Gradient.NONE, regions=_BOUNDED, refuses=_JOINT, batched=True, slow=True
    ),
    Linearization: Claims(
        lambda m: (Linearization(),) if m == L2 else (),
        gradient=Gradient.NONE,
        regions=_BOUNDED,
        batched=True,
        slow=True,
    ),
    LinearPieces: Claims(
        lambda m: (LinearPieces(m, cells=20),),
        kinds=_PROVEN,
        gradient=Gradient.NONE,
        regions=_BOUNDED,
        refuses=_JOINT | {"smooth"},
        slow=True,
    ),
    LipMIP: Claims(
        lambda m: (LipMIP(m),) if m == LINF else (),
        kinds=_PROVEN,
        gradient=Gradient.NONE,
        regions=(Box,),
        refuses=_JOINT | {"smooth", "kinks elsewhere"},
        slow=True,
    ),
    Sampling: Claims(lambda m: (Sampling(64, m),), kinds=_LOWER, gradient=Gradient.NONE, batched=True, slow=True),
    GradientAscent: Claims(
        lambda m: (
            GradientAscent(3, 2, metric=m),
            GradientAscent(3, 2, DifferenceQuotient(), metric=m),
        ),
        kinds=_LOWER,
        gradient=Gradient.NONE,
        batched=True,
        slow=True,
    ),
    CLEVER: Claims(
        lambda m: (CLEVER(20, 20),) if m == L2 else (),
        kinds=frozenset({Kind.ESTIMATE}),
        gradient=Gradient.NONE,
        regions=_BOUNDED,
        batched=True,
        slow=True,
    ),
    PairwiseDAG: Claims(lambda m: (PairwiseDAG(metric=m),)),
    PairwiseLipLT: Claims(lambda m: (PairwiseLipLT(metric=m), PairwiseLipLT(window=1, metric=m))),
    PairwiseHead: Claims(lambda m: (PairwiseHead(LipLT(metric=m)),)),
}  # fmt: skip
# Callables that give a bound of something else than the constant of the network, with the suite that tests them.
OTHERS = {Smoothness: "bounds/properties/test_smoothness.py"}


def reads_region(method: Method | Pairwise) -> bool:
    """Whether the method says that it finds less on a smaller region."""
    return isinstance(method, Method) and method.reads_region


def instances(metric: Metric, slow: bool | None = None) -> list[tuple[Method | Pairwise, Claims]]:
    """All settings of all methods in one metric; only the slow or the fast ones if that is said."""
    chosen = (claims for claims in CLAIMS.values() if slow is None or claims.slow is slow)
    return [(method, claims) for claims in chosen for method in claims.instances(metric)]
