"""Diagnostics of votes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.certify import smoothing as rs
from support.smoothing import published_radii


def test_the_distance_to_uniform_votes_runs_from_0_to_1_minus_1_over_c():
    shares = torch.stack([torch.full((4,), 0.25), torch.eye(4)[2], torch.tensor([0.5, 0.5, 0.0, 0.0])])
    torch.testing.assert_close(rs.distance_to_uniform(shares), torch.tensor([0.0, 0.75, 0.5]))


@given(st.integers(0, 2**31), st.integers(2, 20), st.sampled_from([0.1, 1.0, 5.0]))
def test_near_uniform_votes_have_no_majority(seed: int, classes: int, scale: float):
    shares = (scale * torch.randn(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(
        -1
    )
    # One class cannot have more than its even part and all that differs.
    assert shares.max().item() <= 1 / classes + rs.distance_to_uniform(shares).item() + 1e-15


def test_without_a_majority_only_bounds_of_rivals_certify():
    shares = torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64)
    assert rs.distance_to_uniform(shares).item() == pytest.approx(0.15)
    assert published_radii.one_against_all(0.4, 1.0) < 0 < published_radii.cohen(0.4, 0.2, 1.0)
