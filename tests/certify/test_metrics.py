"""Metrics fed batch by batch against counts in loops."""

import math

import pytest
import torch

from lipkit import Bound, Kind
from lipkit.certify import AverageRadius, CertifiedAccuracy, CleanAccuracy, clopper_pearson
from lipkit.errors import ArgumentError, NonFiniteError
from unchecked import unchecked

BOUND = Bound.from_value(2.0, Kind.UPPER, "given")


def margin(row: list[float], label: int) -> float:
    return row[label] - max(value for j, value in enumerate(row) if j != label)


def test_batches_add_up() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(100, 4, dtype=torch.float64), torch.randint(4, (100,))
    logits[5] = 1.0  # a tie proves nothing
    clean, certified, mean = CleanAccuracy(), CertifiedAccuracy([0.1, 0.3], BOUND), AverageRadius(BOUND)
    for start in range(0, 100, 30):
        part = slice(start, start + 30)
        for metric in (clean, certified, mean):
            metric.update(logits[part], labels[part])
    margins = [margin(row, label) for row, label in zip(logits.tolist(), labels.tolist(), strict=True)]
    radii = [max(0.0, m) / (2 * math.sqrt(2)) for m in margins]
    right = sum(m > 0 for m in margins)
    share = clean.compute()
    assert (share.count, share.total) == (right, 100)
    assert (share.low, share.high) == clopper_pearson(right, 100)
    assert [s.count for s in certified.compute()] == [sum(r > e for r in radii) for e in (0.1, 0.3)]
    assert mean.compute() == pytest.approx(sum(radii) / 100, rel=1e-12)
    clean.reset()
    assert math.isnan(clean.compute().value)


def test_a_constant_may_change_from_batch_to_batch() -> None:
    metric = CertifiedAccuracy([0.5])
    logits, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    with pytest.raises(ArgumentError, match="needs a constant"):
        metric.update(logits, labels)
    metric.update(logits, labels, BOUND)
    metric.update(logits, labels, Bound.from_value(1.0, Kind.UPPER, "given"))
    assert metric.compute()[0].count == 1
    with pytest.raises(ArgumentError, match="finite radii"):
        CertifiedAccuracy([])


@unchecked()
def test_what_is_no_classified_batch_is_refused_by_every_metric() -> None:
    logits, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    for metric in (CleanAccuracy(), CertifiedAccuracy([0.1], BOUND), AverageRadius(BOUND)):
        update = metric.update
        with pytest.raises(NonFiniteError, match="NaN or infinite"):
            update(logits * math.nan, labels)
        with pytest.raises(ArgumentError, match=r"0\.\.1, got 2\.\.2"):
            update(logits, labels + 2)
        with pytest.raises(ArgumentError, match=r"class indices, got torch\.float32"):
            update(logits, labels.float())
    for make in (lambda: CleanAccuracy(level=1.0), lambda: CertifiedAccuracy([0.1], BOUND, level=math.nan)):
        with pytest.raises(ArgumentError, match="confidence level"):
            make()
