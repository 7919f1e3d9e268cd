"""Published formulas that do not hold as printed: a counter-example each, against the form that lipkit uses."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from lipkit.linops import materialize
from lipkit.regularizers import (
    ActivationDecay,
    GradientPenalty,
    Orthogonality,
    SpectrumAlignment,
    layers_of,
    points_between,
)
from lipkit.regularizers.activations.jasmin import interlacing_bound
from lipkit.regularizers.activations.smoothing_gap import smoothing_gap
from lipkit.regularizers.weights.parseval import parseval_step


def scalar_layer(value: float) -> nn.Linear:
    layer: Any = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(layer.weight, value)
    return layer


def test_the_gradient_of_parseval_tightness_has_a_factor_two() -> None:
    layer = scalar_layer(2.0)
    layers = layers_of(layer, torch.zeros(1, 1, dtype=torch.float64))
    tightness = Orthogonality()(layers) / 2
    assert float(tightness.detach()) == 4.5
    (found,) = torch.autograd.grad(tightness, [layer.weight])
    w = layer.weight.detach()
    printed = w @ w.mT @ w - w
    assert float(printed) == 6.0
    assert float(found) == 12.0 == 2 * float(printed)
    # The update that is printed after it is the one of a quarter of the square.
    assert float(parseval_step(w, 0.1)) == pytest.approx(2.0 - 0.1 * float(printed))


def test_the_printed_gradient_penalty_is_not_zero_at_norm_one() -> None:
    layer = scalar_layer(1.0)
    norm = 1.0
    assert (1 - norm - 2) ** 2 == 4.0
    assert float(GradientPenalty()(layer, torch.zeros(1, 1, dtype=torch.float64)).detach()) == 0.0


def test_a_small_orthogonality_penalty_does_not_ensure_norm_one() -> None:
    layer = scalar_layer(1.1)
    found = math.sqrt(float(Orthogonality()(layers_of(layer, torch.zeros(1, 1, dtype=torch.float64))).detach()))
    # ||W'W - I||_F = 0.21, and the norm is above one: the sharp consequence is ||W||^2 <= 1 + 0.21.
    assert found == pytest.approx(0.21)
    assert 1.0 < 1.1 <= math.sqrt(1 + found) * (1 + 1e-12)


def test_a_critic_can_be_steep_between_samples_only() -> None:
    # Slope 1 for |x| >= 1, slope 5 in between: |D(1) - D(-1)| = 10 at distance 2.
    def critic(x: torch.Tensor) -> torch.Tensor:
        return x.flatten() + 4 * x.flatten().clamp(-1, 1)

    real, fake = torch.full((64, 1), 2.0), torch.full((64, 1), -2.0)
    assert float(GradientPenalty()(critic, torch.cat([real, fake])).detach()) == 0.0
    between = points_between(real, fake, torch.Generator().manual_seed(0))
    # Half of the segment is steep, where the penalty is 16.
    assert float(GradientPenalty()(critic, between).detach()) == pytest.approx(8.0, abs=4.0)


def test_the_printed_chain_of_singular_values_breaks_for_two() -> None:
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    sigma = torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p)).flip(0)
    # Printed: sigma_2 >= p_(n) with n = 2, but sigma_2 = 0.
    assert abs(float(sigma[1])) < 1e-15 < float(p[1])
    assert float(sigma[0]) == pytest.approx(0.5)
    assert float(interlacing_bound(p, 1)) == 0.5
    # g_n needs p_(n+1), which is not there: 0 keeps the chain.
    assert float(p[1]) >= float(interlacing_bound(p, 2)) == 0.25 >= float(sigma[1])


def test_the_loss_gap_of_activation_decay_cannot_be_positive() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 10).double()
    hidden, target = torch.randn(32, 16, dtype=torch.float64), torch.randint(10, (32,))
    generator = torch.Generator().manual_seed(0)
    found = smoothing_gap(head, hidden, target, ActivationDecay(0.05), 0.05, 1000, generator)
    # Printed for this sigma: a mean gap of +0.021 and a cosine of 0.916.
    assert float(found.gap) < 5 * float(found.error) < 0.021
    assert float(found.weight.cosine) > 0.999


def test_the_expansion_of_a_layer_acts_on_its_input() -> None:
    """d(theta z)/d sigma_1 is u_1 (v_1'z): how a loss moves the norm depends on the input, which is printed without."""
    torch.manual_seed(0)
    layer: Any = nn.Linear(4, 3, bias=False).double()
    theta, g = layer.weight.detach(), torch.randn(3, dtype=torch.float64)
    u, s, v = torch.linalg.svd(theta, full_matrices=False)
    printed = torch.stack([s[i] * torch.outer(u[:, i], v[i]) for i in range(3)]).sum(0)
    (read,) = layers_of(layer, torch.zeros(1, 4, dtype=torch.float64))
    # Without z the sum is the layer's matrix; sums of twelve products of numbers below one round by 1e-15.
    torch.testing.assert_close(printed, materialize(read.operator()).detach(), rtol=0, atol=1e-14)
    for z in (torch.randn(4, dtype=torch.float64), v[1]):
        right = torch.stack([s[i] * u[:, i] * (v[i] @ z) for i in range(3)]).sum(0)
        torch.testing.assert_close(read.operator().apply(z).detach(), right, rtol=0, atol=1e-14)
        (drift,) = SpectrumAlignment().drifts(layer(z) @ g, [read])
        # Zero for the second singular vector; as printed, both inputs would have the same part u_1 v_1'.
        assert float(drift.detach()) == pytest.approx(-float((u[:, 0] @ g) * (v[0] @ z)), abs=1e-12)
