"""Noise on weights: none at sigma 0, the stated law otherwise, telescoping where it should, reproducible throughout."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError
from lipkit.optim import AntiPGD, NoiseInjection, WeightNoise
from lipkit.optim.weight_noise import Noisy

Build = Callable[..., Noisy]
BUILDS = [NoiseInjection, AntiPGD, WeightNoise]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quadratic(weight: Tensor, optimizer: torch.optim.Optimizer, seen: list[Tensor] | None = None) -> Any:
    def closure() -> Tensor:
        if seen is not None:
            seen.append(weight.detach().clone())
        optimizer.zero_grad()
        loss = (weight.square() * torch.arange(1, weight.numel() + 1)).sum()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("base", [lambda p: torch.optim.SGD(p, 0.1, 0.9), lambda p: torch.optim.Adam(p, 0.1)])
def test_level_zero_is_the_base_bit_for_bit(build: Build, base: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    start = torch.randn(5)
    plain, noisy = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    reference, optimizer = base([plain]), build(base([noisy]), sigma=0.0)
    for _ in range(4):
        a = reference.step(quadratic(plain, reference))
        b = optimizer.step(quadratic(noisy, optimizer))
        assert torch.equal(a, b)
    assert torch.equal(plain, noisy)


def test_injected_noise_has_the_stated_law() -> None:
    weight = nn.Parameter(torch.zeros(20_000))
    optimizer = NoiseInjection(torch.optim.SGD([weight], lr=0.1), 0.3, seeded())
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    noise = weight.detach() + 0.1
    # Five standard errors of a mean and of a deviation over 20,000 draws.
    assert abs(float(noise.mean())) < 5 * 0.3 / 20_000**0.5
    assert abs(float(noise.std()) - 0.3) < 5 * 0.3 / (2 * 20_000) ** 0.5
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    second = weight.detach() - before
    # Independent: the correlation of two draws is about 1/sqrt(n).
    assert abs(float((noise * second).mean()) / 0.09) < 5 / 20_000**0.5


def test_anti_correlated_noise_telescopes() -> None:
    weight = nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = AntiPGD(torch.optim.SGD([weight], lr=0.1), 0.3, seeded())
    draws = [0.3 * torch.randn(50, dtype=torch.float64, generator=g) for g in [seeded()] for _ in range(8)]
    for n in range(1, 8):
        before = weight.detach().clone()
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        assert torch.allclose(weight.detach() - before, draws[n] - draws[n - 1], atol=1e-14)
        # The sum of all injected noise is the last draw minus the first.
        assert torch.allclose(weight.detach(), draws[n] - draws[0], atol=1e-14)
    optimizer.param_groups[0]["sigma"] = 0.0
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.allclose(weight.detach(), -draws[0], atol=1e-14)
    before = weight.detach().clone()
    optimizer.step()
    assert torch.equal(weight.detach(), before)


def test_anti_correlated_noise_does_not_wander() -> None:
    ends: list[float] = []
    for build in (NoiseInjection, AntiPGD):
        weight = nn.Parameter(torch.zeros(2000))
        optimizer = build(torch.optim.SGD([weight], lr=0.1), 0.1, seeded())
        for _ in range(100):
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        ends.append(float(weight.detach().std()))
    # A random walk of 100 steps against one difference: 0.1 sqrt(100) and 0.1 sqrt(2), within five percent or so.
    assert ends[0] == pytest.approx(1.0, rel=0.08)
    assert ends[1] == pytest.approx(0.1414, rel=0.08)


def test_weight_noise_takes_gradients_at_noisy_points_and_comes_back() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = WeightNoise(torch.optim.SGD([weight], lr=0.1), 0.5, draws=3, generator=seeded())
    seen: list[Tensor] = []
    loss = optimizer.step(quadratic(weight, optimizer, seen))
    generator = seeded()
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected = [start + 0.5 * torch.randn(2, dtype=torch.float64, generator=generator) for _ in range(3)]
    assert all(torch.allclose(a, b, atol=1e-15) for a, b in zip(seen, expected, strict=True))
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gradient = torch.stack([2 * scale * point for point in expected]).mean(0)
    assert torch.allclose(weight.detach(), start - 0.1 * gradient, atol=1e-14)
    assert float(loss.detach()) == pytest.approx(float(torch.stack([(scale * p * p).sum() for p in expected]).mean()))


def test_weight_noise_is_unbiased_for_the_smoothed_gradient() -> None:
    # L = w^4: the smoothed loss is w^4 + 6 sigma^2 w^2 + 3 sigma^4, its gradient 4 w^3 + 12 sigma^2 w.
    weight = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = WeightNoise(torch.optim.SGD([weight], lr=0.0), 0.3, draws=4000, generator=seeded())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight**4
        loss.backward()
        return loss

    optimizer.step(closure)
    # The deviation of 4 (1 + 0.3 n)^3 is about 5, so 0.08 for the mean; four of them.
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(4 + 12 * 0.09, abs=0.32)
    assert float(weight.detach()) == 1.0


def test_weights_come_back_when_an_evaluation_fails() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = WeightNoise(torch.optim.SGD([weight], lr=0.1), 0.5)

    def closure() -> Tensor:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(closure)
    assert torch.equal(weight.detach(), torch.ones(3))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("how", ["state", "deepcopy"])
def test_a_run_that_is_resumed_draws_the_same(build: Build, how: str) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5))
    optimizer = build(torch.optim.SGD([weight], lr=0.05, momentum=0.9), sigma=0.1, generator=seeded())
    for _ in range(3):
        optimizer.step(quadratic(weight, optimizer))
    if how == "state":
        other = nn.Parameter(weight.detach().clone())
        again = build(torch.optim.SGD([other], lr=1.0), sigma=0.7, generator=seeded(9))
        stored = io.BytesIO()
        torch.save(optimizer.state_dict(), stored)
        stored.seek(0)
        again.load_state_dict(torch.load(stored))
    else:
        other, again = copy.deepcopy((weight, optimizer))
    for _ in range(3):
        optimizer.step(quadratic(weight, optimizer))
        again.step(quadratic(other, again))
    assert torch.equal(weight, other)


def test_groups_have_their_own_level() -> None:
    quiet, loud = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    base = torch.optim.SGD([{"params": [quiet], "sigma": 0.0}, {"params": [loud]}], lr=0.1)
    optimizer = NoiseInjection(base, 0.5, seeded())
    for weight in (quiet, loud):
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert not bool(quiet.any())
    assert bool(loud.all())


def test_a_parameter_that_joins_later_starts_its_own_chain() -> None:
    first, second = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    optimizer = AntiPGD(torch.optim.SGD([first], lr=0.1), 0.5, seeded())
    optimizer.step()
    optimizer.add_param_group({"params": [second]})
    for _ in range(200):
        optimizer.step()
    # Every chain carries a difference of two draws.
    assert max(float(first.detach().abs().max()), float(second.detach().abs().max())) < 0.5 * 1.42 * 5


@pytest.mark.parametrize("build", BUILDS)
def test_narrow_weights_and_what_is_frozen(build: Build) -> None:
    weight = nn.Parameter(torch.ones(4).bfloat16())
    frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    optimizer = build(torch.optim.SGD([weight, frozen], lr=0.1), sigma=0.5, generator=seeded())
    optimizer.step(quadratic(weight, optimizer))
    assert weight.dtype == torch.bfloat16
    assert not torch.equal(weight.detach(), torch.ones(4).bfloat16())
    assert torch.equal(frozen, torch.ones(4))


def test_misuse_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    for build in BUILDS:
        with pytest.raises(ArgumentError, match="sigma"):
            build(torch.optim.SGD([weight], lr=0.1), sigma=-1.0)
    with pytest.raises(ArgumentError, match="draws"):
        WeightNoise(torch.optim.SGD([weight], lr=0.1), draws=0)
    with pytest.raises(ArgumentError, match="closure"):
        WeightNoise(torch.optim.SGD([weight], lr=0.1)).step()
    plain = NoiseInjection(torch.optim.SGD([weight], lr=0.1), 0.1)
    with pytest.raises(ArgumentError, match="without a generator"):
        NoiseInjection(torch.optim.SGD([weight], lr=0.1), 0.1, seeded()).load_state_dict(plain.state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    def made() -> AntiPGD:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = AntiPGD(torch.optim.SGD([weight], lr=0.1, momentum=0.9), 0.1, seeded())
        for _ in range(2):
            (weight**2).sum().backward()
            optimizer.step()
        return optimizer

    good = made().state_dict()
    group = good["param_groups"][0]
    no_sigma = {key: value for key, value in group.items() if key != "sigma"}
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "no groups": ({"state": {}}, "has no param_groups"),
        "other sizes": ({**good, "param_groups": [{**group, "params": [0, 1]}]}, r"groups with \[2\] parameters"),
        "of another": ({**good, "param_groups": [no_sigma]}, "its groups have no sigma, which AntiPGD needs"),
        "out of range": ({**good, "param_groups": [{**group, "sigma": -1.0}]}, "sigma must be a finite number"),
        "no last": ({key: good[key] for key in good if key != "last"}, "without a last draw"),
        "last of another": ({**good, "last": {0: torch.zeros(4)}}, r"has shape \(4,\), expected \(3,\)"),
        "last of none": ({**good, "last": {1: torch.zeros(3)}}, "expected no parameter"),
        "no generator": ({key: good[key] for key in good if key != "generator"}, "without a generator"),
        "a short generator": ({**good, "generator": torch.zeros(3, dtype=torch.uint8)}, "cannot be taken up"),
    }
    for state, complaint in bad.values():
        optimizer = made()
        optimizer.param_groups[0]["lr"] = 0.7
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ArgumentError, match=complaint):
            optimizer.load_state_dict(state)
        after = optimizer.state_dict()
        assert after["param_groups"] == before["param_groups"]
        assert torch.equal(after["state"][0]["momentum_buffer"], before["state"][0]["momentum_buffer"])
        assert torch.equal(after["last"][0], before["last"][0])
        assert torch.equal(after["generator"], before["generator"])
    optimizer = made()
    optimizer.load_state_dict(good)


def test_noise_around_noise_keeps_both_generators():
    def made() -> WeightNoise:
        weight = torch.nn.Parameter(torch.ones(3))
        inner = NoiseInjection(torch.optim.SGD([weight], lr=0.1), 0.1, seeded(1))
        return WeightNoise(inner, 0.1, generator=seeded(2))

    first, second = made(), made()
    assert isinstance(first.base, NoiseInjection)
    assert isinstance(second.base, NoiseInjection)
    torch.randn(5, generator=first.generator)
    torch.randn(3, generator=first.base.generator)
    second.load_state_dict(first.state_dict())
    for a, b in ((first, second), (first.base, second.base)):
        assert torch.equal(torch.randn(4, generator=a.generator), torch.randn(4, generator=b.generator))
