"""Attacks on membership find what a known mechanism shows, and nothing where there is nothing."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.privacy import Gaussian, epsilon, learned_membership, membership
from support.unchecked import unchecked

DELTA = 1e-5


def released(records: int, sigma: float, features: int = 1) -> tuple[Tensor, Tensor]:
    """Each record in a Gaussian release of its own, as many inside as outside: 1 in the last feature, noise in all."""
    inside, outside = sigma * torch.randn(
        2, records, features, generator=torch.Generator().manual_seed(features), dtype=torch.float64
    )
    inside[:, -1] += 1
    return inside, outside


def test_the_threshold_attack():
    found = membership(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    # By hand: of six pairs four are won, one is tied.
    assert found.auc == pytest.approx(4.5 / 6)
    assert found.advantage == pytest.approx(0.5)
    assert found.threshold == 1.0
    assert found.excess(0.0, 0.1) == pytest.approx(0.4)
    overfit = membership(torch.ones(50), torch.zeros(50))
    assert overfit.excess(3.0, DELTA) > 0.9
    private = membership(*(found[:, 0] for found in released(50_000, 2.0)))
    limit = epsilon(1.0, 2.0, 1, DELTA, Gaussian())
    # The law of the mechanism, up to six deviations of a share of 50,000.
    assert private.excess(limit, DELTA) < 6 * math.exp(limit) * 0.5 / math.sqrt(50_000)


def test_what_is_learnt_is_the_direction_that_tells_most():
    # Any one of the mixed features shows a tenth of the shift; the best direction shows all of it, and has an AUC of
    # Phi(1 / (sqrt 2 sigma)).
    inside, outside = released(4_000, 0.5, features=40)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(5), dtype=torch.float64))[0]
    found = learned_membership(inside @ turn, outside @ turn)
    # The scatter of an AUC of 4,000 against 4,000 is below 0.006, and 40 weights are learnt from as many.
    assert found.auc == pytest.approx(norm.cdf(1 / (math.sqrt(2) * 0.5)), abs=0.02)
    alone = max(membership((inside @ turn)[:, k], (outside @ turn)[:, k]).auc for k in range(40))
    assert found.auc > alone + 0.1
    limit = epsilon(1.0, 0.5, 1, DELTA, Gaussian())
    assert found.excess(limit, DELTA) < 6 * 0.5 / math.sqrt(4_000)


def test_features_without_information_tell_nothing_however_many_there_are():
    # 300 weights fit 400 records in full; judged by their own fit, all would be told apart.
    inside, outside = torch.randn(2, 400, 300, generator=torch.Generator().manual_seed(0))
    found = learned_membership(inside, outside)
    # The deviation of an AUC of 400 against 400 is 0.02.
    assert abs(found.auc - 0.5) < 0.08
    assert found.advantage < 0.25


def test_sides_of_other_sizes_and_dull_features_do_no_harm():
    inside, outside = released(3_000, 0.5)
    dull = torch.full((3_000, 1), 7.0).double()
    found = learned_membership(torch.cat([inside, dull], 1)[:300], torch.cat([outside, dull], 1))
    assert found.auc == pytest.approx(norm.cdf(1 / (math.sqrt(2) * 0.5)), abs=0.06)
    # The sign of a feature does not matter.
    assert learned_membership(-inside, -outside).auc == pytest.approx(learned_membership(inside, outside).auc, abs=1e-9)


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        (torch.zeros(9, 3), ShapeError),
        (torch.zeros(3, 2), ShapeError),
        (torch.zeros(9), ShapeError),
        (torch.zeros(0, 2), ArgumentError),
        (torch.full((9, 2), math.nan), NonFiniteError),
        (np.zeros((9, 2)), ArgumentError),
    ],
)
def test_features_that_do_not_fit_are_refused(inside: Tensor, error: type[Exception]):
    with unchecked(), pytest.raises(error):
        learned_membership(inside, torch.zeros(9, 2))
