"""Constants of pairs from the last layer, in the norm that is asked for."""

import math

import pytest
import torch
from torch import nn

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds import DAG
from lipkit.certify import head_pairwise, in_norm
from lipkit.errors import ArgumentError, KindError


def head(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def found(layer: nn.Module, p: float) -> Bound:
    with torch.no_grad():
        return head_pairwise(layer, torch.zeros(1, 4, dtype=torch.float64), DAG(metric=Metric(p, p)))


@pytest.mark.parametrize(
    ("rows", "p", "own", "changed"),
    [
        # z_1 - z_2 = the sum of four entries: 2 in l2, and 2 * 4^(1/2) = 4 in linf is attained by (1, 1, 1, 1).
        ([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]], math.inf, 4.0, 4.0),
        # One entry: 1 in every norm, of which the change of norms knows nothing.
        ([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], math.inf, 1.0, 2.0),
        # l1 is larger than l2, so nothing is lost; the own constant is the largest entry.
        ([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]], 1.0, 1.0, 2.0),
    ],
)
def test_constants_in_another_norm(rows: list[list[float]], p: float, own: float, changed: float) -> None:
    layer = head(rows)
    moved = in_norm(found(layer, 2.0), p, 4)
    assert (moved.kind, moved.metric, moved.of) == (Kind.UPPER, Metric(p, p), Scope.PAIR)
    # A power and a product: 2^-40 of room, 1e-12.
    assert float(moved.value[0, 1]) == pytest.approx(changed, rel=2e-12)
    assert float(moved.value[0, 1]) >= changed * (1 - 1e-15)
    assert float(moved.value[0, 0]) == 0
    both = moved.best(found(layer, p))
    assert float(both.value[0, 1]) == pytest.approx(min(own, changed), rel=2e-12)


def test_the_same_norm_changes_nothing() -> None:
    bound = found(head([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]]), 2.0)
    assert in_norm(bound, 2.0, 4) is bound
    assert in_norm(bound, 1.0, 4).how == f"{bound.how}, in l2, enlarged"


def test_what_cannot_be_moved_is_refused() -> None:
    pairs = found(head([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]), 2.0)
    with pytest.raises(ArgumentError, match=r"p=0\.5"):
        in_norm(pairs, 0.5, 4)
    for entries in (0, True, 10**400):
        with pytest.raises(ArgumentError, match=f"and {entries}"):
            in_norm(pairs, math.inf, entries)
    with pytest.raises(KindError, match="Upper bounds for pairs"):
        in_norm(Bound.from_value(1.0, Kind.UPPER, "all"), math.inf, 4)
    with pytest.raises(KindError, match="Upper bounds for pairs"):
        in_norm(Bound.from_value(torch.ones(2, 2), Kind.LOWER, "from below", of=Scope.PAIR), math.inf, 4)
