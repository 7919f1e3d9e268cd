"""Certified radii counted: the accuracy curve over all radii, and the histogram."""

import math
from collections.abc import Sequence

from lipkit.certify import Evaluation, Proportion, SampleResult
from lipkit.report.results.contents import CurvePoint, Histogram

# Points of the curve, and bars of the histogram at most.
_POINTS, _BARS = 65, 24


def curve(evaluation: Evaluation) -> tuple[CurvePoint, ...]:
    """The share of samples certified beyond r, for r from 0 to the largest finite radius or eps, in even steps.

    The radii of the evaluation are among them, so the curve passes through its table. Intervals are those of
    `Evaluation`: each at the level by itself.
    """
    last = reach(evaluation.samples, evaluation.eps)
    grid = sorted({last * i / (_POINTS - 1) for i in range(_POINTS - 1)} | {last, *evaluation.eps})
    total = len(evaluation.samples)
    return tuple(
        CurvePoint(r, Proportion.of(sum(s.radius > r for s in evaluation.samples), total, evaluation.level))
        for r in grid
    )


def histogram(evaluation: Evaluation) -> Histogram:
    """Bars of one width from 0 to the largest finite radius of a sample; as many as the square root of their number."""
    right = [s.radius for s in evaluation.samples if s.predicted == s.label]
    finite = [r for r in right if 0 < r < math.inf]
    last = max(finite, default=1.0)
    bars = max(1, min(_BARS, math.isqrt(len(finite))))
    counts = [0] * bars
    for r in finite:
        counts[min(bars - 1, max(0, math.ceil(r / last * bars) - 1))] += 1
    return Histogram(
        edges=tuple(last * i / bars for i in range(bars + 1)),
        counts=tuple(counts),
        wrong=len(evaluation.samples) - len(right),
        uncertain=sum(r == 0 for r in right),
        endless=sum(r == math.inf for r in right),
    )


def reach(samples: Sequence[SampleResult], eps: Sequence[float]) -> float:
    """The end of an axis of radii: the largest finite one, or 1 if none is above 0."""
    finite = [s.radius for s in samples if s.radius < math.inf]
    return max([*finite, *eps], default=0.0) or 1.0
