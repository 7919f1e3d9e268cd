"""The most accurate threshold against every threshold, tried one by one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf.one_class import AccurateThreshold

# Few values, so that many are equal; neighbours in float64; and two whose sum overflows.
VALUES = st.sampled_from([-1.0, 0.0, 1.0, math.nextafter(1.0, 2.0), 2.5, 1.7e308, -1.7e308])


def right(scores: list[float], labels: list[int], value: float) -> int:
    return sum((score >= value) == (label > 0) for score, label in zip(scores, labels, strict=True))


@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=9), st.sampled_from([0, -1]))
def test_no_threshold_is_better(pairs: list[tuple[float, bool]], other: int):
    scores, labels = [p[0] for p in pairs], [1 if p[1] else other for p in pairs]
    found = AccurateThreshold.fit(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels))
    tried = [*scores, math.inf]
    best = max(right(scores, labels, value) for value in tried)
    assert right(scores, labels, found.value) == best
    assert found.accuracy == best / len(scores)
    flagged = sum(score < found.value for score in scores)
    # No other of the best flags fewer rows.
    assert flagged == min(sum(s < v for s in scores) for v in tried if right(scores, labels, v) == best)


def test_the_threshold_lies_in_the_middle_of_the_gap():
    found = AccurateThreshold.fit(torch.tensor([3.0, 1.0, 2.0, -4.0]), torch.tensor([1, 0, 1, 0]))
    assert found == AccurateThreshold(1.5, 1.0)


def test_scores_and_labels_that_mean_nothing_are_refused():
    one = torch.ones(2)
    with pytest.raises(ShapeError, match="one row or more"):
        AccurateThreshold.fit(torch.ones(0), torch.ones(0, dtype=torch.int64))
    with pytest.raises(NonFiniteError, match="NaN"):
        AccurateThreshold.fit(one / 0, torch.tensor([0, 1]))
    with pytest.raises(ArgumentError, match=r"got \[1, 2\]"):
        AccurateThreshold.fit(one, torch.tensor([1, 2]))
