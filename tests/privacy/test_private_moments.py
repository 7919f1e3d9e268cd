"""Private moments: what they estimate, how much noise they have, and who pays."""

import math

import pytest
import torch
from torch import Tensor

from lipkit import privacy
from lipkit.errors import ArgumentError, RecordError, ShapeError

SHAPE = (3, 4, 4)


def images(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    return 0.1 * scale * (1 + torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("positions", [(), (1, 2), (0,)])
def test_with_little_noise_they_are_the_moments(positions: tuple[int, ...]):
    x, ball = images(200), privacy.Inputs(SHAPE, 1.0, center=0.1)
    moments = privacy.release_moments(x, ball, 200, 1e-12, positions=positions)
    z = ball(x)
    axes = (0, *(axis + 1 for axis in positions))
    # Noise of 1e-12, and sums of 200 numbers of float64.
    assert torch.allclose(moments.mean, z.mean(axes), rtol=0, atol=1e-11)
    assert torch.allclose(moments.variance, z.var(axes, correction=0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("positions", [(), (1, 2)])
def test_one_record_moves_no_sum_by_more_than_its_sensitivity(positions: tuple[int, ...]):
    # The worst records: all in one entry, constant, and random ones on the sphere.
    ball = privacy.Inputs(SHAPE, 2.0)
    records = torch.randn(500, *SHAPE, dtype=torch.float64)
    records[0], records[1] = 0, 1
    records[0, 0, 0, 0] = 1
    z = ball(100 * records)
    places = math.prod(SHAPE[axis] for axis in positions)
    means = torch.stack([one.mean(positions) if positions else one for one in z]).flatten(1).norm(dim=1)
    squares = (
        torch.stack([one.square().mean(positions) if positions else one.square() for one in z]).flatten(1).norm(dim=1)
    )
    assert float(means.max()) <= 2.0 / math.sqrt(places)
    assert float(squares.max()) <= 4.0 / places
    # Attained by the record with a single entry.
    assert float(squares.max()) > 0.99 * 4.0 / places
    assert float(means.max()) > 0.5 * 2.0 / math.sqrt(places)


def test_the_noise_has_its_deviation():
    # No rows at all: sums are noise. 4,000 entries; six deviations of a variance.
    ball = privacy.Inputs((4_000,), 3.0)
    moments = privacy.release_moments(torch.zeros(0, 4_000), ball, 10, 1.5)
    seen = float((moments.mean * 10).square().mean())
    expected = 2 * 1.5**2 * 9.0
    # The sensitivity is enlarged by 1 + 2^-7, for rounding.
    assert abs(seen / (expected * (1 + 2**-7) ** 2) - 1) < 6 * math.sqrt(2 / 4_000)
    assert moments.releases == privacy.Releases(1.0, 1.5, 1)


def test_a_plan_pays_for_them(tmp_path):
    paid = privacy.Releases(1.0, 5.0, 1)
    plan = privacy.Plan(1_000, 100, 50, 1e-4, sigma=2.0, accountant=privacy.RDP(), others=[paid])
    alone = privacy.Plan(1_000, 100, 50, 1e-4, sigma=2.0, accountant=privacy.RDP())
    assert plan.epsilon > alone.epsilon
    assert plan.epsilon_after(0) == privacy.epsilon(1.0, 5.0, 1, 1e-4, privacy.RDP())
    assert "multiplier 5;" in str(plan)
    tight = privacy.Plan(1_000, 100, 50, 1e-4, epsilon=plan.epsilon, accountant=privacy.RDP(), others=[paid])
    # The search for sigma stops within a share of 1e-5.
    assert tight.sigma == pytest.approx(2.0, rel=1e-4)
    privacy.Ledger.open(tmp_path / "ledger", plan).close()
    assert privacy.Ledger.read(tmp_path / "ledger", privacy.RDP()).epsilon == plan.epsilon_after(0)
    with pytest.raises(RecordError, match="another plan"):
        privacy.Ledger.open(tmp_path / "ledger", alone)


def test_bad_arguments_are_refused():
    ball = privacy.Inputs(SHAPE, 1.0)
    with pytest.raises(ArgumentError):
        privacy.release_moments(images(3), ball, 0, 1.0)
    with pytest.raises(ArgumentError):
        privacy.release_moments(images(3), ball, 3, 0.0)
    with pytest.raises(ShapeError):
        privacy.release_moments(images(3), ball, 3, 1.0, positions=(3,))
    with pytest.raises(ShapeError):
        privacy.release_moments(images(3), ball, 3, 1.0, positions=(1, 1))


def test_standardising_by_the_records_is_no_step_of_one_record():
    def total(x: Tensor, y: Tensor) -> tuple[float, float]:
        z = (x - x.mean()) / x.std(correction=0)
        return float((y * z).sum()), float(z.abs().max())

    x = torch.cat([torch.ones(500), -torch.ones(500)]).double()
    more = torch.cat([x, x.new_tensor([1000.0])])
    (without, _), (beside, largest) = total(x, x.sign()), total(more, more.sign())
    # One record moves the sum by far more than the largest norm, which is to bound what a record can do.
    assert without - beside > 29 * largest
    # On a public ball it moves the noiseless sums of values and squares by no more than they say.
    ball = privacy.Inputs((1,), 2.0)
    first, second = (ball(part[:, None]) for part in (x, more))
    assert abs(float(second.sum() - first.sum())) <= 2.0
    assert float(second.square().sum() - first.square().sum()) <= 4.0
