"""Shares of the noise: one release of the multiplier that was asked for, with the least energy."""

import math

import pytest
import torch

from lipkit import privacy
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.privacy.allocations import noise_energy

ALLOCATIONS = [privacy.Optimal(), privacy.PerTensor(), privacy.Global()]


def limits_of(values: list[float], sizes: list[int]) -> privacy.Limits:
    bounds = {str(k): Bound.from_value(v, Kind.UPPER, "given") for k, v in enumerate(values)}
    return privacy.Limits(bounds, {str(k): n for k, n in enumerate(sizes)})


def drawn(seed: int) -> privacy.Limits:
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 8, (), generator=generator))
    values = torch.rand(count, generator=generator, dtype=torch.float64).mul(6).sub(3).exp()
    return limits_of(values.tolist(), torch.randint(1, 5000, (count,), generator=generator).tolist())


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: type(a).__name__)
def test_the_multipliers_are_one_release(allocation: privacy.Allocation):
    for seed in range(50):
        found = allocation.multipliers(drawn(seed), 1.7)
        assert math.fsum(s**-2 for s in found.values()) == pytest.approx(1.7**-2, rel=1e-9)


@pytest.mark.slow
def test_no_feasible_change_is_better_than_the_optimum():
    generator = torch.Generator().manual_seed(0)
    for seed in range(200):
        limits = drawn(seed)
        best = noise_energy(limits, privacy.Optimal().deviations(limits, 2.0))
        found = privacy.Optimal().multipliers(limits, 2.0)
        shares = torch.tensor([s**-2 for s in found.values()], dtype=torch.float64)
        for _ in range(50):
            moved = shares * torch.randn(len(shares), generator=generator, dtype=torch.float64).mul(0.3).exp()
            moved = moved / moved.sum() / 4
            values = limits.values_by_name()
            other = {n: values[n] * float(q) ** -0.5 for n, q in zip(limits, moved, strict=True)}
            assert noise_energy(limits, other) >= best * (1 - 1e-12)
        for worse in (privacy.Global(), privacy.PerTensor()):
            assert noise_energy(limits, worse.deviations(limits, 2.0)) >= best * (1 - 1e-9)


def test_equal_limits_and_sizes_make_all_three_the_same():
    limits = limits_of([0.5] * 4, [10] * 4)
    for allocation in ALLOCATIONS:
        assert list(allocation.deviations(limits, 3.0).values()) == pytest.approx([3.0] * 4)


def test_a_tensor_without_a_gradient_needs_no_noise():
    limits = limits_of([0.0, 1.0], [10, 10])
    assert privacy.Optimal().deviations(limits, 1.0)["0"] == pytest.approx(0.0, abs=1e-100)
    assert privacy.Optimal().multipliers(limits, 1.0)["1"] == pytest.approx(1.0)


def test_a_whitened_release_is_the_scalar_one():
    # Log-likelihood ratios of a release of three tensors against one Gaussian of the effective multiplier.
    limits, sigma, count = limits_of([1.0, 0.2, 3.0], [1, 1, 1]), 1.3, 400_000
    deviations = torch.tensor(list(privacy.Optimal().deviations(limits, sigma).values()), dtype=torch.float64)
    shift = torch.tensor(list(limits.values_by_name().values()), dtype=torch.float64)
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * deviations
    ratio = ((noise + shift) * shift / deviations**2 - shift**2 / deviations**2 / 2).sum(1)
    # Normal with mean 1 / (2 sigma^2) and variance 1 / sigma^2; five standard errors of each.
    assert float(ratio.mean()) == pytest.approx(0.5 / sigma**2, abs=5 / sigma / count**0.5)
    assert float(ratio.var()) == pytest.approx(sigma**-2, rel=5 * (2 / count) ** 0.5)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_bad_multiplier_is_refused(sigma: float):
    with pytest.raises(ArgumentError, match="finite number > 0"):
        privacy.Optimal().deviations(drawn(0), sigma)
