"""Temperatures against a bounded minimiser, at the edges, and the alternation on two moons."""

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from lipkit import nn
from lipkit.certify.calibration import SelfCalibration, Where, temperature
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def loss(logits: Tensor, labels: Tensor, tau: float) -> float:
    return float(torch.nn.functional.cross_entropy(tau * logits.double(), labels))


@given(st.integers(0, 10**6), st.sampled_from([1e-6, 0.01, 1.0, 300.0]), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_the_minimum_is_where_a_general_solver_finds_it(seed: int, scale: float, classes: int):
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, classes, generator=source, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(2 * logits, 1), 1, generator=source).squeeze(1)
    found = temperature(logits * scale, labels, cap=1e9)
    assert found.where is Where.INSIDE
    best: Any = minimize_scalar(
        lambda log: loss(logits * scale, labels, math.exp(log)), bracket=(math.log(1 / scale), math.log(3 / scale))
    )
    # A minimiser is flat: it is known to half of the digits of the loss.
    assert found.tau == pytest.approx(math.exp(best.x), rel=1e-6)
    assert found.loss <= best.fun + 1e-14
    assert found.low <= found.tau <= found.high
    assert found.high - found.low <= 1e-6 * found.tau
    # The sign change by differences of the loss, wide enough to be seen.
    assert loss(logits * scale, labels, found.low * 0.999) > loss(logits * scale, labels, found.low)
    assert loss(logits * scale, labels, found.high * 1.001) > loss(logits * scale, labels, found.high)
    assert found.beta == 1 / found.tau


def test_the_edges_are_reported():
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    perfect = temperature(logits, logits.argmax(1), cap=50.0)
    assert (perfect.tau, perfect.where) == (50.0, Where.CAP)
    useless = temperature(logits, logits.argmin(1))
    assert (useless.tau, useless.beta, useless.where) == (0.0, math.inf, Where.ZERO)
    assert useless.loss == pytest.approx(math.log(3), rel=1e-14)
    # Scores that are all the same: every temperature is as good, and the interval says so.
    same = temperature(torch.ones(4, 2), torch.tensor([0, 1, 1, 0]), cap=7.0)
    assert (same.low, same.high, same.where) == (0.0, 7.0, Where.ZERO)
    # Beyond what rounding can tell from flat, the cap is returned with an honest lower end.
    far = temperature(logits, logits.argmax(1), cap=1e6)
    assert far.where is Where.CAP
    assert far.low < 1e6


def test_a_closed_form():
    # Two classes, gap 1, three of four right: sigmoid(tau) = 3/4.
    logits = torch.tensor([[1.0, 0.0]] * 4)
    found = temperature(logits, torch.tensor([0, 0, 0, 1]))
    assert found.low <= math.log(3) <= found.high
    assert found.tau == pytest.approx(math.log(3), rel=1e-12)


def test_wrong_arguments_are_named():
    labels = torch.zeros(1).long()
    with pytest.raises(NonFiniteError, match="NaN"):
        temperature(torch.full((1, 2), torch.nan), labels)
    with pytest.raises(ArgumentError, match="cap"):
        temperature(torch.ones(1, 2), labels, cap=0.0)
    with pytest.raises(ShapeError, match=r"\(0, 2\)"):
        temperature(torch.ones(0, 2), labels[:0])
    with pytest.raises(ArgumentError, match=r"0\.\.1, got 0\.\.2"):
        temperature(torch.zeros(2, 2), torch.tensor([0, 2]))
    with pytest.raises(ShapeError, match="One label for each row"):
        inspect.unwrap(temperature)(torch.zeros(2, 2), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="rtol"):
        temperature(torch.ones(1, 2), labels, rtol=0.0)
    with pytest.raises(ArgumentError, match="rounds"):
        SelfCalibration(rounds=0)
    with pytest.raises(ArgumentError, match="first temperature"):
        SelfCalibration()(lambda _: None, lambda: (torch.ones(1, 2), labels), start=0.0)


def test_the_alternation_stops_where_the_temperature_does():
    seen: list[float] = []
    logits = torch.tensor([[1.0, 0.0]] * 4)
    history = SelfCalibration()(seen.append, lambda: (logits, torch.tensor([0, 0, 0, 1])), start=5.0)
    # A model that never changes: the first temperature is the last, and the second fit confirms it.
    assert [t.tau for t in history] == pytest.approx([math.log(3)] * 2)
    assert seen == pytest.approx([5.0, math.log(3)])


def moons(noise: float, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(160, generator=source)
    labels = torch.arange(160) % 2
    side = 1 - 2 * labels
    x = torch.stack([torch.cos(angle) * side + labels, torch.sin(angle) * side + labels / 2], 1)
    return x + noise * torch.randn(160, 2, generator=source), labels


class Moons:
    """A 1-Lipschitz net on two moons, trained at any temperature from where it is."""

    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        torch.manual_seed(0)
        self.data = data
        self.net = torch.nn.Sequential(nn.Linear(2, 16), nn.MaxMin(), nn.Linear(16, 16), nn.MaxMin(), nn.Linear(16, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.02)

    def fit(self, tau: float, steps: int = 25) -> None:
        x, labels = self.data
        for _ in range(steps):
            self.optimizer.zero_grad()
            (torch.nn.functional.cross_entropy(tau * self.net(x), labels) / tau).backward()
            self.optimizer.step()

    def logits(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.net(x)


@pytest.mark.train
def test_a_shifted_calibration_set_lowers_the_temperature_and_its_loss():
    # The trend of the published scenarios: trained on clean moons and calibrated on noisy ones, the loss on the noisy
    # set falls well below that of a fixed temperature fitted to the clean one, which pays on the clean set.
    clean, noisy = moons(0.05, 0), moons(0.4, 1)
    control, fixed = Moons(clean), 20.0
    control.fit(fixed, steps=100)
    shifted = Moons(clean)
    history = SelfCalibration(rounds=4, rtol=0.0)(
        shifted.fit, lambda: (shifted.logits(noisy[0]), noisy[1]), start=fixed
    )
    tau = history[-1].tau
    assert tau < fixed / 2
    on_noisy = loss(shifted.logits(noisy[0]), noisy[1], tau), loss(control.logits(noisy[0]), noisy[1], fixed)
    on_clean = loss(shifted.logits(clean[0]), clean[1], tau), loss(control.logits(clean[0]), clean[1], fixed)
    assert on_noisy[0] < 0.8 * on_noisy[1]
    assert on_clean[0] > on_clean[1]
