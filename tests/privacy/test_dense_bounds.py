"""Closed forms against printed values, formulas and gradients of random networks."""

import math

import pytest
import torch
from torch.nn import functional

from lipkit.privacy import DenseNetwork, gradient_deviation

VALUES = [
    ((1.3, 1.0, 1.0, 0.5, 2.0, 5), 11.1641166),
    ((1.0, 1.0, 0.9, 0.3, 2.0, 6), 5.0924359),
    ((1.0, 1.0, 1.2, 0.3, 2.0, 6), 21.1436508),
    ((1.0, 2.0, 0.5, 0.3, 2.0, 4), 7.7330460),
    ((1.0, 0.5, 2.0, 0.3, 2.0, 4), 5.6280547),
]


@pytest.mark.parametrize(("numbers", "value"), VALUES)
def test_known_values(numbers: tuple[float, float, float, float, float, int], value: float):
    # Printed to seven decimals; ours is rounded up by 1e-9 an operation.
    assert DenseNetwork(*numbers).gradient() == pytest.approx(value, abs=3e-7)


def test_the_closed_form_at_ratio_one():
    loss, slope, weight, bias, x, depth = 1.0, 0.5, 2.0, 0.3, 2.0, 4
    n, sb = depth + 1, slope * bias
    square = n * (1 + x * x) + x * sb * depth * n + sb**2 * depth * n * (2 * depth + 1) / 6
    assert DenseNetwork(loss, slope, weight, bias, x, depth).gradient() == pytest.approx(math.sqrt(square), rel=1e-7)


def test_activations_for_a_slope_below_one():
    net = DenseNetwork(1.0, 0.5, 2.0, 0.0, 1.0, 1)
    # x -> 2x -> x/2 of that: z_1 = 2 and h_1 = 1 are attained, where the printed bounds are 1 and 0.5.
    assert net.preactivation(1) == pytest.approx(2.0)
    assert net.activation(1) == pytest.approx(1.0)
    assert net.preactivation(1) >= 2.0
    assert net.activation(1) >= 1.0


def test_no_gradient_is_above_its_bound():
    source = torch.Generator().manual_seed(0)
    net = DenseNetwork(1.0, 1.0, 1.1, 0.4, 2.0, 2)
    largest = 0.0
    for _ in range(200):
        weights = [torch.linalg.qr(torch.randn(4, 4, generator=source))[0].mul(1.1).requires_grad_() for _ in range(3)]
        biases = [
            functional.normalize(torch.randn(4, generator=source), dim=0).mul(0.4).requires_grad_() for _ in range(3)
        ]
        x = torch.randn(4, generator=source)
        h = 2 * x / x.norm()
        for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
            z = w @ h + b
            h = z.abs() if k < 2 else z
        target = torch.randn(4, generator=source)
        grads = torch.autograd.grad(h @ target / target.norm(), [*weights, *biases])
        largest = max(largest, float(torch.cat([g.flatten() for g in grads]).norm()))
    assert 0.7 * net.gradient() < largest <= net.gradient()


def test_means_of_batches_concentrate_as_stated():
    source, b, u = torch.Generator().manual_seed(0), 100, 0.3
    signs = torch.randint(0, 2, (20_000, b), generator=source) * 2.0 - 1.0
    seen = float((signs.mean(1).abs() > u).double().mean())
    assert seen <= gradient_deviation(b, u) < 0.9
    assert gradient_deviation(b, 0.1) == 1.0
