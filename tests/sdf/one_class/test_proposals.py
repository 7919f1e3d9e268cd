"""Proposals stay in their domain and have the distribution they state; samples around rows have their distances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lipkit.errors import ArgumentError
from lipkit.sdf.one_class import (
    GaussianColumns,
    OneHotColumns,
    Proposal,
    UniformBall,
    UniformBox,
    distances,
    draw_around,
)
from support.unchecked import unchecked


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


def with_categories(seed: int = 0) -> torch.Tensor:
    """Two columns of numbers around two categories, of three and of two values; rare ones too, and standardised."""
    draw = source(seed)
    first = torch.multinomial(torch.tensor([0.9, 0.07, 0.03]), 300, replacement=True, generator=draw)
    second = torch.multinomial(torch.tensor([0.8, 0.2]), 300, replacement=True, generator=draw)
    numbers = torch.randn(300, 2, generator=draw, dtype=torch.float64)
    hot = [torch.nn.functional.one_hot(one).double() for one in (first, second)]
    rows = torch.cat([hot[0], numbers, hot[1]], 1)
    return (rows - rows.mean(0)) / rows.std(0)


def test_categories_are_drawn_uniformly_and_independently():
    rows, groups = with_categories(), ((0, 1, 2), (6, 5))
    proposal = OneHotColumns(groups)
    drawn = proposal.draw(rows, 12_000, source(3))
    chosen: list[torch.Tensor] = []
    for group in groups:
        part = drawn[:, list(group)]
        on = part == rows[:, list(group)].amax(0)
        # Every drawn pattern is one of the rows', bit by bit.
        patterns = {tuple(row) for row in rows[:, list(group)].tolist()}
        assert {tuple(row) for row in part.tolist()} == patterns
        assert bool((on.sum(1) == 1).all())
        chosen.append(on.long().argmax(1))
    counts = torch.bincount(chosen[0] * 2 + chosen[1])
    # A true law fails this with probability 1e-4.
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    low, high = proposal.box(rows)
    assert bool(((drawn >= low) & (drawn <= high)).all())
    assert torch.equal(low[:3], rows[:, :3].amin(0))
    # All other columns are those of the other proposal.
    plain = GaussianColumns().draw(rows, 12_000, source(3))
    assert torch.equal(drawn[:, 3:5], plain[:, 3:5])


@pytest.mark.parametrize("groups", [(), ((1,),), ((0, 1), (1, 2)), ((-1, 2),), ((0, 1.0),)])
def test_groups_that_are_no_categories_are_refused(groups: tuple[tuple[int, ...], ...]):
    with unchecked(), pytest.raises(ArgumentError, match="got"):
        OneHotColumns(groups)


@pytest.mark.parametrize("group", [(0, 1), (3, 4), (5, 6, 0), (2, 9)])
def test_rows_that_have_no_such_category_are_refused(group: tuple[int, ...]):
    # A column is missing, columns are numbers, two columns are on at once, a column is not there.
    with pytest.raises(ArgumentError, match="category"):
        OneHotColumns((group,)).draw(with_categories(), 5, source())


def test_margins_of_images_are_shares_of_the_diagonal():
    # The published pairs, of two and of three digits.
    assert round(UniformBox().margin((3, 32, 32), 0.002), 3) == 0.111
    assert round(UniformBox(-1, 1).margin((1, 28, 28), 0.02 / math.sqrt(2)), 3) == 0.792
    corners = torch.tensor([[-1.0] * 12, [3.0] * 12], dtype=torch.float64)
    # One root and two products in float64.
    assert UniformBox(-1, 3).margin((3, 2, 2), 0.1) == pytest.approx(
        0.1 * float(torch.dist(corners[0], corners[1])), rel=1e-14
    )
    with pytest.raises(ArgumentError, match="share"):
        UniformBox().margin((2,), 0.0)


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
