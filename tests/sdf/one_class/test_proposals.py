"""Proposals stay in their domain and have the distribution they state; samples around rows have their distances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lipkit.errors import ArgumentError
from lipkit.sdf.one_class import GaussianColumns, Proposal, UniformBall, UniformBox, distances, draw_around


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(seed: int = 0) -> torch.Tensor:
    return torch.randn(200, 4, generator=source(seed), dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.1, 5.0]) + 3.0


@given(
    st.sampled_from([GaussianColumns(), GaussianColumns(2.0, 1.0), UniformBox(-1.0, 4.0), UniformBall(2.0)]),
    st.integers(0, 10**6),
)
def test_draws_stay_in_the_box(proposal: Proposal, seed: int):
    rows = table(seed)
    drawn = proposal.draw(rows, 50, source(seed))
    low, high = proposal.box(rows)
    assert drawn.shape == (50, 4)
    assert bool(((drawn >= low) & (drawn <= high)).all())
    assert torch.equal(drawn, proposal.draw(rows, 50, source(seed)))


def test_columns_are_gaussian_with_half_the_largest_deviation():
    rows = table()
    drawn = GaussianColumns(reach=1e6).draw(rows, 20_000, source())
    for column in range(4):
        spread = float((rows[:, column] - rows[:, column].mean()).abs().max()) / 2
        found = stats.kstest(drawn[:, column].numpy(), "norm", (float(rows[:, column].mean()), spread))
        # A true law fails this with probability 1e-4.
        assert found.pvalue > 1e-4
    box = GaussianColumns().box(rows)
    assert torch.allclose(box[1] - box[0], 10 * rows.std(0, correction=0))


def test_the_ball_is_uniform_and_the_box_too():
    rows = torch.zeros(5, 3, dtype=torch.float64)
    lengths = torch.linalg.vector_norm(UniformBall(2.0).draw(rows, 20_000, source()), dim=1) / 2
    # P(|z| <= r) = r^3 in three dimensions.
    assert stats.kstest((lengths**3).numpy(), "uniform").pvalue > 1e-4
    pixels = UniformBox().draw(torch.zeros(2, 1, 4, 4), 1000, source())
    assert pixels.shape == (1000, 1, 4, 4)
    assert stats.kstest(pixels.flatten().double().numpy(), "uniform").pvalue > 1e-4


def test_distances_are_those_of_brute_force():
    rows, points = table(), table(1) * 2
    exact = torch.cdist(points, rows, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    # Squares of about 1e2 cancel in float64: 1e-14 of them under a root.
    assert torch.allclose(distances(points, rows), exact, atol=1e-6)


def test_samples_around_rows_lie_on_them_near_them_and_far():
    rows = table()
    points = draw_around(rows, 503, source())
    assert points.shape == (503, 4)
    found = distances(points, rows) / rows.std(0).square().mean().sqrt()
    assert float(found.min()) < 0.1 < 1.0 < float(found.max())
    shuffled = points[-90:]
    # Shuffled points take each column from a row of its own.
    assert all(bool(torch.isin(shuffled[:, c], rows[:, c]).all()) for c in range(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianColumns(0.0),
        lambda: UniformBall(-1.0),
        lambda: UniformBox(1.0, 0.0),
        lambda: UniformBox(0, math.inf),
    ],
)
def test_domains_without_inside_are_refused(make: object):
    with pytest.raises(ArgumentError, match="got"):
        make()  # type: ignore[operator]
