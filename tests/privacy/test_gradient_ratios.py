"""Ratios of gradients to their limits, against gradients record by record."""

import pytest
import torch
from torch import nn

import lipkit.nn as lnn
from lipkit import losses, privacy
from support.record_gradients import drawn_records, gradient_norms


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_ratios_are_those_of_single_gradients(chunk: int):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), lnn.MaxMin(), nn.Linear(8, 3)).double()
    ball, loss = privacy.Inputs((6,), 2.0), losses.TauCrossEntropy(3.0)
    x, y = drawn_records((6,), 3.0, 20), torch.arange(20) % 3
    ratios = privacy.gradient_ratios(model, loss, ball, x, y, chunk=chunk)
    limits = privacy.sensitivity(model, loss, ball).values_by_name()
    expected = gradient_norms(model, loss, ball(x), y)
    assert ratios.keys() == limits.keys()
    for name, found in ratios.items():
        assert torch.allclose(found, expected[name] / limits[name], rtol=1e-9, atol=0)
        assert float(found.max()) <= 1


def test_an_isometry_uses_most_of_its_limits_and_clipping_keeps_them():
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(8, 8, bias=False), lnn.MaxMin(), lnn.Linear(8, 8, bias=False)).double()
    ball = privacy.Inputs((8,), 1.0)
    x, y = 10 * torch.randn(50, 8, dtype=torch.float64), torch.arange(50) % 8
    for clip in (None, privacy.Fixed(0.01)):
        ratios = privacy.gradient_ratios(model, nn.CrossEntropyLoss(), ball, x, y, clip)
        assert all(float(found.max()) <= 1 for found in ratios.values())
        # All gradients in the outputs are longer than 0.01, so that each clipped one is as long as its limit.
        if clip is not None:
            assert all(float(found.min()) > 0.99 * 2**7 / (2**7 + 1) for found in ratios.values())
