"""Training of an energy: the gradient of the likelihood, the constant of what comes out, and a fit that can be seen."""

import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf import EnergyTraining
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked

SMALL = EnergyTraining(
    constant=8.0, width=32, depth=2, steps=200, batch=256, chains=256, learning_rate=1e-2, chain=5, langevin_step=1.0
)


def two_clusters(count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    right = torch.rand(count, 1, generator=random) < 0.5
    return torch.where(right, 1.0, -1.0) + 0.2 * torch.randn(count, 1, generator=random)


def test_the_gradient_of_the_likelihood_is_that_of_data_minus_that_of_draws() -> None:
    # E = theta |x|, so p is theta / 2 exp(-theta |x|); data at distance 2.
    def loss(theta: float) -> float:
        total, _ = quad(lambda t: 2 * math.exp(-theta * t), 0, math.inf)
        return 2 * theta + math.log(total)

    theta = 1.0
    mean, _ = quad(lambda t: t * math.exp(-t), 0, math.inf)
    slope = (loss(theta + 1e-4) - loss(theta - 1e-4)) / 2e-4
    # Central differences are good to 1e-8 here.
    assert math.isclose(slope, 2 - mean, abs_tol=1e-6)
    # A step along the printed sign makes the likelihood worse, along the right one better.
    assert loss(theta - 0.1 * (mean - 2)) > loss(theta) > loss(theta - 0.1 * (2 - mean))


@pytest.mark.train
def test_a_density_with_two_clusters_is_found() -> None:
    energy = SMALL(two_clusters(2000, 0))
    low, high = float(energy.low), float(energy.high)
    grid = torch.linspace(low, high, 2001, dtype=torch.float64)[:, None]
    density = torch.softmax(-energy.field(grid), 0)
    masses = [float(density[((grid - at).abs() < 0.6).flatten()].sum()) for at in (-1, 1)]
    # Even density would put 0.3 of the mass into each window; the data have half in each.
    assert all(0.35 <= mass <= 0.65 for mass in masses)
    assert sum(masses) >= 0.9


@pytest.mark.train
def test_the_energy_has_the_constant_that_was_chosen_and_the_run_repeats() -> None:
    quick = EnergyTraining(constant=8.0, width=16, depth=3, steps=5, batch=64, chains=100, chain=2)
    points = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) + 5
    with torch.random.fork_rng(devices=[]):
        first = quick(points)
    second = quick(points)
    assert first.bound.kind.certifies
    # The layers have norm one and a constant is rounded up, each by parts of a float32.
    assert 8.0 * (1 - 1e-5) <= constant_of(first.field) <= 8.0 * (1 + 1e-5)
    x = first.draw_evenly(50, torch.Generator().manual_seed(1))
    assert torch.equal(first.field(x), second.field(x))
    # The box reaches beyond the points by half of their range.
    points = points.double()
    torch.testing.assert_close(first.low, 1.5 * points.amin(0) - 0.5 * points.amax(0))
    torch.testing.assert_close(first.high, 1.5 * points.amax(0) - 0.5 * points.amin(0))


@pytest.mark.train
def test_another_network_is_trained_in_the_same_way_and_its_constant_proven() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    before = [p.detach().clone() for p in network.parameters()]
    energy = SMALL(two_clusters(500, 0), network)
    assert all(not torch.equal(a, b) for a, b in zip(before[:3], network.parameters(), strict=False))
    first, last = (weight.detach() for weight in network.parameters() if weight.ndim == 2)
    product = torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(last, 2)
    # The product of the norms, rounded up in float64; the right side is computed in float32.
    assert math.isclose(constant_of(energy.field), float(product), rel_tol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"constant": 0.0},
        {"constant": math.inf},
        {"learning_rate": -1.0},
        {"langevin_step": math.nan},
        {"margin": 0.0},
        {"width": 15},
        {"depth": 0},
        {"steps": 0},
        {"batch": 0},
        {"chains": 0},
        {"chain": 0},
        {"anew": 1.5},
        {"seed": -1},
    ],
)
def test_bad_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        EnergyTraining(**wrong)


def test_points_without_a_box_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least two points"):
        SMALL(torch.zeros(1, 2))
    with unchecked(), pytest.raises(ShapeError, match=r"\(n, d\)"):
        SMALL(torch.zeros(5))
    with pytest.raises(ArgumentError, match=r"\[1\] are the same for all points"):
        SMALL(torch.tensor([[0.0, 2.0], [1.0, 2.0]]))
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        SMALL(torch.tensor([[0.0, math.nan], [1.0, 2.0]]))


def test_a_training_that_runs_away_says_so() -> None:
    class Overflow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum(1) * math.inf

    with pytest.raises(NonFiniteError, match="at step 0"):
        SMALL(two_clusters(50, 0), Overflow())
