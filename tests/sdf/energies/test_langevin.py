"""Langevin samplers: what they keep, against quadrature and closed forms, and that they stay in the box."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from lipkit.errors import ArgumentError
from lipkit.sdf import MALA, ULA, Energy, Function
from lipkit.sdf.energies.langevin import _log_acceptance, _value_and_drift, reflect

CHAINS = 20_000


def stated(formula: Callable[[torch.Tensor], torch.Tensor], dim: int, constant: float) -> Function:
    """A formula of a few operations with a constant that these tests know."""
    return Function(formula, dim, constant, roundings=8)


def laplace(count: int, seed: int) -> torch.Tensor:
    """Draws of exp(-|x|) / 2."""
    shares = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (-shares[:, :1].log()) * (shares[:, 1:] < 0.5).double().mul(2).sub(1)


def variance_kept_by_ula(step: float) -> float:
    """The variance of the stationary law of x - step sign(x) + sqrt(2 step) xi, from its kernel on a fine grid."""
    # No point lies at the kink; Gaussian kernels make sums of this spacing (0.06) exact to many digits elsewhere.
    grid = np.linspace(-18, 18, 600)
    centers = grid - step * np.sign(grid)
    kernel = np.exp(-((grid[None] - centers[:, None]) ** 2) / (4 * step))
    kernel /= kernel.sum(1, keepdims=True)
    # Squaring the kernel: 2^10 steps are enough to forget any start.
    for _ in range(10):
        kernel = kernel @ kernel
    return float(kernel[300] @ grid**2)


def test_the_oracle_has_the_known_limits() -> None:
    # 2.69 and 2.13 were measured with 20,000 chains: standard errors of 0.04 and 0.03.
    assert math.isclose(variance_kept_by_ula(0.5), 2.69, abs_tol=0.08)
    assert math.isclose(variance_kept_by_ula(0.1), 2.13, abs_tol=0.06)
    # The bias vanishes with the step: 2 is the variance of exp(-|x|) / 2.
    assert math.isclose(variance_kept_by_ula(0.02), 2, abs_tol=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "steps"), [(0.5, 80), (0.1, 400)])
def test_ula_keeps_another_variance(step: float, steps: int) -> None:
    energy = Energy(stated(lambda x: x[:, 0].abs(), 1, 1.0), -40.0, 40.0)
    found = ULA(step, steps)(energy, laplace(CHAINS, 1), torch.Generator().manual_seed(2))
    truth = variance_kept_by_ula(step)
    # Fourth moments are below 6 times the square of the variance, as for exp(-|x|): five standard errors. What is left
    # of the start after time 40 is below exp(-40 / 4) of the difference.
    error = 5 * truth * math.sqrt(5 / CHAINS) + 1e-3
    assert abs(float(found.var()) - truth) <= error


@pytest.mark.slow
@pytest.mark.parametrize(("step", "steps"), [(0.5, 40), (0.1, 40)])
def test_mala_keeps_the_variance_of_the_density(step: float, steps: int) -> None:
    energy = Energy(stated(lambda x: x[:, 0].abs(), 1, 1.0), -40.0, 40.0)
    found = MALA(step, steps)(energy, laplace(CHAINS, 3), torch.Generator().manual_seed(4))
    # E x^4 = 24, so x^2 has the variance 20: four standard errors are 0.13.
    assert abs(float(found.square().mean()) - 2) <= 4 * math.sqrt(20 / CHAINS)
    assert kstest(found[:, 0].numpy(), "laplace").pvalue > 1e-3


def test_mala_forgets_a_wrong_start() -> None:
    energy = Energy(stated(lambda x: x[:, 0].abs(), 1, 1.0), -40.0, 40.0)
    starts = torch.full((4000, 1), 3.0, dtype=torch.float64)
    found = MALA(1.0, 60)(energy, starts, torch.Generator().manual_seed(5))
    assert kstest(found[:, 0].numpy(), "laplace").pvalue > 1e-3


def cut_off(t: np.ndarray) -> np.ndarray:
    """The distribution function of exp(-2 |x - 0.8|) on [-1, 1]: most of it lies at the upper end."""
    below = (np.exp(2 * (np.minimum(t, 0.8) - 0.8)) - np.exp(-3.6)) / 2
    above = (1 - np.exp(-2 * (np.maximum(t, 0.8) - 0.8))) / 2
    total = (1 - math.exp(-3.6)) / 2 + (1 - math.exp(-0.4)) / 2
    return (below + above) / total


@pytest.mark.parametrize("step", [0.02, 0.5])
def test_mala_keeps_a_density_that_ends_at_the_box(step: float) -> None:
    energy = Energy(stated(lambda x: 2 * (x[:, 0] - 0.8).abs(), 1, 2.0), -1.0, 1.0)
    # Exact draws, by tabulated inversion: 1e-5 off at most, far below what 20,000 draws can see.
    grid = np.linspace(-1, 1, 200_001)
    shares = np.random.default_rng(6).random(CHAINS)
    starts = torch.from_numpy(np.interp(shares, cut_off(grid), grid))[:, None]
    found = MALA(step, 25)(energy, starts, torch.Generator().manual_seed(7))
    moved = float((found != starts).double().mean())
    # Otherwise nothing is tested; with the large step most proposals lie outside.
    assert moved > 0.9
    assert bool(energy.contains(found).all())
    assert kstest(found[:, 0].numpy(), cut_off).pvalue > 1e-3


def test_reflection_keeps_the_even_distribution() -> None:
    energy = Energy(stated(lambda x: 0 * x[:, 0], 2, 0.0), torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0]))
    starts = energy.draw_evenly(CHAINS, torch.Generator().manual_seed(8))
    found = ULA(0.1, 20)(energy, starts, torch.Generator().manual_seed(9))
    assert bool((found != starts).all())
    for axis, (low, side) in enumerate(((0, 1), (2, 3))):
        assert kstest((found[:, axis].numpy() - low) / side, "uniform").pvalue > 1e-3


@given(st.integers(0, 2**32), st.floats(1e-3, 2), st.floats(0.1, 5))
def test_moves_of_mala_balance_in_detail(seed: int, step: float, k: float) -> None:
    random = torch.Generator().manual_seed(seed)
    energy = Energy(stated(lambda x: k * (1 + x.square().sum(1)).sqrt() + x[:, 0], 2, k + 1), -3.0, 3.0)
    x, y = energy.draw_evenly(32, random), energy.draw_evenly(32, random)

    # Written again with another library's density and the gradient by hand.
    def log_move(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        root = (1 + a.square().sum(1, keepdim=True)).sqrt()
        slope = k * a / root + torch.tensor([1.0, 0.0], dtype=torch.float64)
        proposal = torch.distributions.Normal(a - step * slope, math.sqrt(2 * step)).log_prob(b).sum(1)
        ours = _log_acceptance(_value_and_drift(energy, a, step), _value_and_drift(energy, b, step), step)
        return -energy.field(a) + proposal + ours.clamp(max=0)

    forth, back = log_move(x, y), log_move(y, x)
    # Roundings of numbers up to (distance)^2 / (4 step) < 1e5.
    torch.testing.assert_close(forth, back, rtol=1e-10, atol=1e-9)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3),
    st.floats(-5, 5),
    st.floats(0.1, 7),
)
def test_reflection_is_repeated_mirroring(moved: list[float], low: float, side: float) -> None:
    high = low + side
    found = reflect(
        torch.tensor(moved, dtype=torch.float64)[:, None], *torch.tensor([[low], [high]], dtype=torch.float64)
    )
    for got, x in zip(found[:, 0].tolist(), moved, strict=True):
        while not low <= x <= high:
            x = 2 * low - x if x < low else 2 * high - x
        assert low <= got <= high
        # Each of up to 1e4 mirrorings rounds numbers up to 1e3.
        assert abs(got - x) <= 1e-8


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 0.3, 50.0, 1e6]), st.sampled_from([ULA, MALA]))
def test_chains_stay_in_the_box(seed: int, step: float, sampler: type[ULA] | type[MALA]) -> None:
    energy = Energy(
        stated(lambda x: 30 * torch.linalg.vector_norm(x - 5, dim=1), 3, 30.0),
        torch.tensor([-1.0, 0.0, 0.1]),
        torch.tensor([1.0, 1e-3, 0.7]),
    )
    random = torch.Generator().manual_seed(seed)
    found = sampler(step, 3)(energy, energy.draw_evenly(50, random), random)
    assert bool(energy.contains(found).all())


def test_a_step_moves_by_no_more_than_its_length_times_the_constant() -> None:
    energy = Energy(stated(lambda x: 7 * torch.linalg.vector_norm(x, dim=1), 2, 7.0), -100.0, 100.0)
    starts = energy.draw_evenly(500, torch.Generator().manual_seed(0)) / 2
    found = ULA(0.25, 1)(energy, starts, torch.Generator().manual_seed(1))
    noise = math.sqrt(0.5) * torch.randn(500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drift = torch.linalg.vector_norm(found - starts - noise, dim=1)
    # Sums of numbers up to 100.
    assert bool((drift <= 0.25 * 7 + 1e-12).all())
    assert float(drift.max()) > 1.7


def test_without_a_box_there_is_nothing_to_settle_at() -> None:
    # The unconfined chain for |x_1| in the plane: the second coordinate is a random walk, of variance 2 step a step.
    random = torch.Generator().manual_seed(0)
    points = torch.rand(CHAINS, 2, generator=random, dtype=torch.float64) * 2 - 1
    for _ in range(100):
        noise = torch.randn(CHAINS, 2, generator=random, dtype=torch.float64)
        points = points - 0.5 * torch.stack([points[:, 0].sign(), torch.zeros(CHAINS)], 1) + noise
    found = float(points[:, 1].var())
    # The variance of a normal sample of this size is known to 1 %; five of that.
    assert math.isclose(found, 1 / 3 + 100, rel_tol=0.05)


def test_draws_repeat_and_continue() -> None:
    energy = Energy(stated(lambda x: torch.linalg.vector_norm(x, dim=1), 2, 1.0), -3.0, 3.0)
    starts = energy.draw_evenly(10, torch.Generator().manual_seed(0))
    for sampler in (ULA, MALA):
        random = torch.Generator().manual_seed(1)
        halves = sampler(0.2, 3)(energy, sampler(0.2, 2)(energy, starts, random), random)
        assert torch.equal(halves, sampler(0.2, 5)(energy, starts, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("sampler", [ULA, MALA])
def test_bad_settings_and_starts_are_refused(sampler: type[ULA] | type[MALA]) -> None:
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="step > 0"):
            sampler(step, 1)
    with pytest.raises(ArgumentError, match="at least 1 step"):
        sampler(0.1, 0)
    energy = Energy(stated(lambda x: x[:, 0], 1, 1.0), 0.0, 1.0)
    with pytest.raises(ArgumentError, match="outside the box"):
        sampler(0.1, 1)(energy, torch.tensor([[2.0]]))
