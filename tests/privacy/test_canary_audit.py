"""Audits stay below the truth of a mechanism that is known exactly, and expose halved noise."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.privacy import Design, Gaussian, ManyRuns, OneRun, audit, epsilon
from support.unchecked import unchecked

DELTA = 1e-5


def scores(canaries: int, sigma: float, seed: int) -> tuple[Tensor, Tensor]:
    """Canaries in orthogonal directions of one Gaussian release, each put in by a fair coin."""
    chance = np.random.default_rng(seed)
    coins = chance.random(canaries) < 0.5
    seen = coins + sigma * chance.standard_normal(canaries)
    return torch.from_numpy(seen[coins]), torch.from_numpy(seen[~coins])


# One run loses canaries * delta of its confidence, so that 100,000 canaries need a small delta: 1e-7 costs 0.01.
@pytest.mark.parametrize(
    ("design", "sigma", "delta"), [(OneRun(), 2.0, 1e-7), (ManyRuns(), 1.0, DELTA)], ids=["one run", "many runs"]
)
def test_a_true_claim_stands_and_halved_noise_is_exposed(design: Design, sigma: float, delta: float):
    claim = epsilon(1.0, 1.0, 1, DELTA, Gaussian())
    honest = [audit(*scores(20_000, 1.0, seed), DELTA, 0.95, design) for seed in range(10)]
    # Each exceeds the claim with probability 0.05 at most; three of ten would be false once in 100 seeds.
    assert sum(found > claim for found in honest) <= 2
    assert max(honest) > 1.0
    halved = audit(*scores(100_000, sigma / 2, 1), delta, 0.95, design)
    assert halved > epsilon(1.0, sigma, 1, delta, Gaussian())


def test_scores_without_information_prove_nothing():
    same = torch.zeros(1_000)
    assert audit(same, same, DELTA) < 0.3
    assert audit(same, same, DELTA, design=ManyRuns()) == 0.0


def test_the_order_of_the_scores_proves_nothing():
    # Nothing tells inside from outside, so every bound above 0 is wrong. If every second score chose the test and the
    # others were counted, those inside would all be high and those outside low.
    chance = torch.Generator().manual_seed(0)
    for _ in range(5):
        (low, high), (less, more) = torch.rand(2, 400, generator=chance).sort().values.reshape(2, 2, 200)
        inside, outside = torch.stack([low, high], 1).flatten(), torch.stack([more, less], 1).flatten()
        assert audit(inside, outside, DELTA, 0.95, ManyRuns()) == 0.0


def test_scores_must_be_there_and_finite():
    with pytest.raises(ArgumentError):
        audit(torch.zeros(0), torch.zeros(3), DELTA)
    with pytest.raises(NonFiniteError):
        audit(torch.full((3,), math.nan), torch.zeros(3), DELTA)


def test_arrays_are_refused_in_a_sentence():
    with unchecked(), pytest.raises(ArgumentError, match=r"inside are a tensor, got ndarray; write torch\.as_tensor"):
        audit(np.zeros(3), torch.zeros(3), DELTA)  # pyright: ignore[reportArgumentType]
