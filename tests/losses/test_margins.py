"""Margins against a loop, and at ties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import leads, margins
from lipkit.losses._base import signs
from lipkit.losses.margins import check_classes, runner_up

# Few different numbers, so that ties are the rule.
rows = st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=6)


@given(rows, st.data())
def test_margins_agree_with_a_loop(z: list[list[int]], data: st.DataObject):
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(z), max_size=len(z)))
    logits = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    found = margins(logits, torch.tensor(labels))
    rest = [max(row[j] for j in range(3) if j != y) for row, y in zip(z, labels, strict=True)]
    assert found.tolist() == [row[y] - r for row, y, r in zip(z, labels, rest, strict=True)]
    assert runner_up(logits, torch.tensor(labels)).tolist() == rest
    assert leads(logits, torch.tensor(labels)).tolist() == [
        [row[y] - v for v in row] for row, y in zip(z, labels, strict=True)
    ]
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    # 1 for the own class; the rivals that tie for the lead share -1.
    for row, y, r, g in zip(z, labels, rest, gradient.tolist(), strict=True):
        first = [j for j in range(3) if j != y and row[j] == r]
        assert g == [1.0 if j == y else -1.0 / len(first) if j in first else 0.0 for j in range(3)]


def test_a_wrong_prediction_has_a_negative_margin():
    # The difference of the two largest logits would be +1 here.
    assert margins(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([1])).item() == -1.0


@pytest.mark.parametrize(
    ("logits", "labels", "error", "complaint"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), ShapeError, r"got \(3,\)"),
        (torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), ShapeError, "classes >= 2"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), ShapeError, r"shape \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.long), ShapeError, "argmax"),
        (torch.zeros(3, 2), torch.zeros(3), ArgumentError, "float32"),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool), ArgumentError, "bool"),
    ],
)
def test_wrong_labels_get_one_sentence(logits: torch.Tensor, labels: torch.Tensor, error: type, complaint: str):
    with pytest.raises(error, match=complaint):
        check_classes(logits, labels)


def test_binary_targets_have_the_shape_of_the_scores():
    with pytest.raises(ShapeError, match=r"\(3, 1\), got \(3,\)"):
        signs(torch.zeros(3, 1), torch.zeros(3))
    for labels in ([0, 1], [-1, 1], [False, True]):
        assert signs(torch.zeros(2), torch.tensor(labels)).tolist() == [-1.0, 1.0]
