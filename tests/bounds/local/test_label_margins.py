"""Margins on a ball: never below what is said, never steeper than their constants; equal to both for linear maps."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.bounds import Relaxation
from lipkit.bounds.lipschitz import network_of
from lipkit.bounds.local.label_margins import LabelMargins
from lipkit.errors import ShapeError, UnsupportedError
from lipkit.regions import Ball
from lipkit.trace import Network
from lipkit.trace.nodes import RELU, Activation
from lipkit.trace.nodes.activations.sigmoids import TANH
from support.networks.local_oracles import network_of as chain_of
from support.networks.local_oracles import points_in, random_weights

NORMS = (1.0, 2.0, math.inf)
DUALS = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}


def others(z: Tensor, label: int) -> Tensor:
    """The margins of a label from logits, by plain torch."""
    return (z[..., label : label + 1] - z)[..., [j for j in range(z.shape[-1]) if j != label]]


def check_margins(f: Callable[[Tensor], Tensor], network: Network, ball: Ball, label: int) -> None:
    """Hold what is said of the margins of a network on a ball against `f`, the same function of one input."""
    with torch.no_grad():
        near = LabelMargins(network, Relaxation()).on(ball, label)
        slopes = torch.stack([near.by_slopes(place) for place in range(len(near.others))])
        constants = torch.minimum(near.by_entries(), slopes)
    points = points_in(ball, 200)[:200]
    found = torch.func.vmap(lambda x: others(f(x), label))(points)
    # Float64 evaluates logits of this size to about 1e-14.
    assert bool((found >= near.least - 1e-12).all())
    one, other = points[:100], points[100:]
    run = torch.linalg.vector_norm((one - other).flatten(1), ball.p, dim=1)[:, None]
    assert bool(((found[:100] - found[100:]).abs() <= constants * run + 1e-12).all())
    steep = torch.func.vmap(torch.func.jacrev(lambda x: others(f(x), label)))(points)
    sizes = torch.linalg.vector_norm(steep.flatten(2), DUALS[ball.p], dim=2)
    assert bool((sizes <= constants * (1 + 1e-12)).all())


@pytest.mark.parametrize("p", NORMS)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6), size=st.sampled_from([1e-3, 0.1, 0.5, 2.0]), label=st.integers(0, 3),
    activation=st.sampled_from([RELU, TANH]),
)  # fmt: skip
def test_margins_and_their_slopes_stay_within_what_is_said(
    p: float, seed: int, size: float, label: int, activation: Activation
):
    weights, biases = random_weights(seed, 3, 9, 5, 4)

    def f(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.from_numpy(weight) @ (activation(x) if i else x) + torch.from_numpy(bias)
        return x

    center = torch.from_numpy(np.random.default_rng(seed).normal(size=5))
    check_margins(f, chain_of(weights, biases, activation), Ball(center, size, p), label)


@pytest.mark.parametrize("p", NORMS)
def test_margins_of_convolutions_stay_within_what_is_said(p: float):
    torch.manual_seed(0)
    parts = (nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2, stride=2), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(*parts, nn.Linear(8, 4)).double().requires_grad_(False)
    network = network_of(model, torch.zeros(1, 1, 4, 4, dtype=torch.float64))
    for size in (0.05, 0.5):
        ball = Ball(torch.randn(1, 4, 4, dtype=torch.float64), size, p)
        check_margins(lambda x: model(x[None])[0], network, ball, 2)


@pytest.mark.parametrize("p", NORMS)
def test_a_linear_classifier_has_its_margins_and_constants_exactly(p: float):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    x = torch.randn(6, dtype=torch.float64)
    near = LabelMargins(network_of(model, x[None]).detach(), Relaxation()).on(Ball(x, 0.3, p), 1)
    rows = (model.weight[1] - model.weight[[0, 2]]).detach()
    truth = torch.linalg.vector_norm(rows, DUALS[p], dim=1)
    lows = others(model(x).detach(), 1) - 0.3 * truth
    # Rounded outward by some hundred units in the last place.
    for found in (near.by_entries(), torch.stack([near.by_slopes(0), near.by_slopes(1)])):
        assert bool((found >= truth).all())
        assert bool((found <= truth * (1 + 1e-12)).all())
    assert bool((near.least <= lows + 1e-15).all())
    assert bool((near.least >= lows - 1e-12).all())


def test_the_slopes_of_one_margin_are_sharper_than_its_entries():
    near = LabelMargins(chain_of(*random_weights(3, 3, 9, 5, 4)), Relaxation()).on(Ball(torch.zeros(5), 1.0), 0)
    entries = near.by_entries()
    for place in range(3):
        assert float(near.by_slopes(place)) < 0.95 * float(entries[place])


def test_other_nodes_have_margins_but_no_constants():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)).double()
    x = torch.randn(1, 4, 4, dtype=torch.float64)
    ball = Ball(x, 0.2)
    near = LabelMargins(network_of(model, x[None]).detach(), Relaxation()).on(ball, 2)
    with torch.no_grad():
        assert bool((others(model(points_in(ball, 200)), 2) >= near.least - 1e-12).all())
    with pytest.raises(UnsupportedError, match="no pointwise function"):
        near.by_entries()


def test_a_single_score_has_no_margins():
    with pytest.raises(ShapeError, match=r"at least two outputs, got outputs of shape \(1,\)"):
        LabelMargins(network_of(nn.Linear(3, 1), torch.zeros(1, 3)), Relaxation())
