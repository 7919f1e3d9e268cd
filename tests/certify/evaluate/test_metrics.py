"""Metrics fed batch by batch against counts in loops."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Kind, bounds
from lipkit.certify import (
    AttackedAccuracy,
    AverageRadius,
    CertifiedAccuracy,
    CleanAccuracy,
    accuracy,
    clopper_pearson,
    head_pairwise,
    radius,
)
from lipkit.certify.attacks import PGD
from lipkit.errors import ArgumentError, NonFiniteError, RegionError
from support.programs.run import PROGRAMS, run_program
from support.unchecked import unchecked

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


def test_classes_add_up() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(90, 4, dtype=torch.float64), torch.randint(3, (90,))
    clean, certified = CleanAccuracy(classes=4), CertifiedAccuracy([0.1, 0.3], BOUND, classes=4)
    mean = AverageRadius(BOUND, classes=4)
    for start in range(0, 90, 40):
        for metric in (clean, certified, mean):
            metric.update(logits[start : start + 40], labels[start : start + 40])
    right, proven, means = clean.per_class(), certified.per_class(), mean.per_class()
    rows = list(zip(logits.tolist(), labels.tolist(), strict=True))
    for k in range(4):
        margins = [margin(row, label) for row, label in rows if label == k]
        radii = [max(0.0, m) / (2 * math.sqrt(2)) for m in margins]
        assert (right[k].count, right[k].total) == (sum(m > 0 for m in margins), len(margins))
        assert [s.count for s in proven[k]] == [sum(r > e for r in radii) for e in (0.1, 0.3)]
        # No sample has the last class.
        assert math.isnan(means[k]) if k == 3 else means[k] == pytest.approx(sum(radii) / len(radii), rel=1e-12)
    clean.reset()
    assert all(share.total == 0 for share in clean.per_class())


def test_classes_must_be_known_and_enough() -> None:
    logits, labels = torch.eye(3), torch.arange(3)
    plain = CleanAccuracy()
    plain.update(logits, labels)
    with pytest.raises(ArgumentError, match="give `classes`"):
        plain.per_class()
    few = CleanAccuracy(classes=2)
    with pytest.raises(ArgumentError, match=r"0\.\.1, got 2"):
        few.update(logits, labels)
    # What was refused is not counted in part.
    assert few.compute().total == 0
    with pytest.raises(ArgumentError, match="number of classes"):
        CleanAccuracy(classes=1)


def classifier() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3)).double().eval()
    x = torch.randn(40, 3, dtype=torch.float64)
    labels = model(x).argmax(1)
    labels[::10] = (labels[::10] + 1) % 3
    return model, x, labels


@pytest.mark.parametrize("metric", [CertifiedAccuracy([0.01]), AverageRadius()])
def test_constants_near_the_inputs_need_them(metric: CertifiedAccuracy | AverageRadius) -> None:
    model, x, labels = classifier()
    network = lipkit.capture(model, x[:1])
    local = bounds.Local(bounds.DAG())(network, Ball(x, 0.05))
    logits = model(x).detach()
    with pytest.raises(RegionError, match="give the inputs as `at=`"):
        metric.update(logits, labels, local)
    metric.update(logits, labels, local, at=x)
    expected = radius(logits, labels, local, at=x).value
    # Cut at the edge of the balls.
    assert float(expected.max()) <= 0.05
    if isinstance(metric, AverageRadius):
        assert metric.compute() == pytest.approx(float(expected.mean()), rel=1e-12)
    else:
        assert metric.compute()[0].count == int((expected > 0.01).sum()) > 0


def test_attacked_samples_are_counted_as_accuracy_counts_them() -> None:
    model, x, labels = classifier()
    model.train()
    eps, attack = (0.1, 0.4), PGD(1.0, steps=20, random_start=False)
    metric = AttackedAccuracy(model, attack, eps, classes=3)
    for part in (slice(0, 25), slice(25, 40)):
        metric.update(x[part], labels[part])
    assert model.training
    bound = head_pairwise(model, x[:1])
    whole = accuracy(model, [(x[:25], labels[:25]), (x[25:], labels[25:])], bound, eps, attack=attack)
    assert whole.overall.attacked is not None
    # No margin is within rounding here, so both count the same.
    assert metric.compute() == whole.overall.attacked
    assert whole.overall.clean.count > metric.compute()[1].count
    assert metric.per_class() == tuple(whole.classes[k].attacked for k in range(3))


def test_a_tie_does_not_stand() -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    metric = AttackedAccuracy(model, PGD(0.1), [0.1])
    metric.update(torch.randn(5, 2), torch.zeros(5, dtype=torch.long))
    assert (metric.compute()[0].count, metric.compute()[0].total) == (0, 5)


@pytest.mark.process
def test_processes_add_up() -> None:
    found = run_program(PROGRAMS / "metrics_program.py", [], 300)
    assert found.returncode == 0, found.stderr[-3000:]
