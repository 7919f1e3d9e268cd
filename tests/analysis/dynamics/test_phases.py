"""Phase plots and driving factors of a profiled training, against plain loops and the Hessian of the norm."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from lipkit import analysis
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, UnsupportedError

RATE = 0.05


def profiled(every: int, momentum: float = 0.0, steps: int = 11) -> tuple[analysis.History, list[list[torch.Tensor]]]:
    """A history of eleven steps, and the weights at its measurements."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    x, y = torch.randn(steps, 16, 6, dtype=torch.float64), torch.randint(0, 3, (steps, 16))
    weights = [[p.detach().clone() for p in model.parameters() if p.ndim == 2]]
    with analysis.Profiler(model, optimizer, x[0][:1], every=every) as profile:
        for xs, ys in zip(x, y, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(xs), ys).backward()
            optimizer.step()
            weights.append([p.detach().clone() for p in model.parameters() if p.ndim == 2])
    return profile.history, weights


@pytest.mark.parametrize(("every", "window"), [(1, 1), (1, 4), (1, 500), (3, 6), (3, 7), (5, 5)])
def test_averages_are_those_of_a_loop_over_intervals(every: int, window: int):
    history, _ = profiled(every)
    found = analysis.phases(history, window)
    steps = history.steps.tolist()
    intervals = list(pairwise(steps))
    for row, (_, end) in enumerate(intervals):
        inside = [i for i, (_, last) in enumerate(intervals) if end - window < last <= end]
        count = sum(intervals[i][1] - intervals[i][0] for i in inside)
        drift = sum(float(layer.drift[i] + layer.decay[i]) for layer in history.layers for i in inside)
        noise = 0.0
        for layer in history.layers:
            assert layer.kappa is not None
            noise += sum(float(layer.kappa[i]) * RATE * (intervals[i][1] - intervals[i][0]) for i in inside)
        assert float(found.drift[row]) == pytest.approx(drift / count, rel=1e-12)
        assert float(found.curvature[row]) == pytest.approx(noise / count, rel=1e-12)
    assert found.steps.tolist() == steps[1:]
    assert bool((found.curvature > 0).all())
    assert bool((found.diffusion > 0).all())
    assert found.kind is Kind.ESTIMATE


def test_a_long_window_ends_with_the_forecast():
    history, _ = profiled(2)
    found, whole = analysis.phases(history, 100), analysis.forecast(history)
    # Means of all eleven steps, summed in another order.
    last = [float(part[-1]) * 11 for part in (found.drift, found.curvature, found.diffusion)]
    assert last == pytest.approx([whole.drift, whole.curvature, whole.diffusion], rel=1e-12)


def test_amplification_is_the_norm_of_the_hessian():
    history, weights = profiled(1)
    for place, factors in enumerate(analysis.driving_factors(history)):
        assert factors.kind is Kind.ESTIMATE
        assert factors.amplification is not None
        for step, value in enumerate(factors.amplification.tolist()):
            hessian = analysis.singular_value_hessian(weights[step][place])
            # 1 / gap: rounding grows with sigma / gap, which is below 1e3 here.
            assert value == pytest.approx(float(hessian.spectrum()[0]), rel=1e-9)
        layer = history.layers[place]
        assert layer.diffusion is not None
        torch.testing.assert_close(factors.directional_noise.square(), layer.diffusion)


def test_layers_that_are_followed_as_operators_have_no_amplification():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 3))
    x, labels = torch.randn(8, 1, 4, 4), torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with analysis.Profiler(model, optimizer, x[:1], every=1, convolutions=analysis.AsOperator()) as profile:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
    for factors in analysis.driving_factors(profile.history):
        # Everything else is there: only the gap of an operator says nothing about its kernel.
        assert factors.amplification is None
        assert bool((factors.directional_noise > 0).all())
        assert float(factors.curvature.min()) > 0


def test_histories_without_noise_are_refused():
    history, _ = profiled(1, momentum=0.9, steps=2)
    with pytest.raises(UnsupportedError, match="momentum"):
        analysis.phases(history)
    with pytest.raises(UnsupportedError, match="momentum"):
        analysis.driving_factors(history)
    with pytest.raises(ArgumentError, match="at least one step, got 0"):
        analysis.phases(profiled(1, steps=2)[0], 0)
