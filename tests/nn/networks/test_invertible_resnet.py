"""The invertible network is a density: it integrates to one, its draws follow it, and its inverse is one."""

import math

import pytest
import torch

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import DAG, Sampling
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.networks import InvertibleResNet


def flow(seed: int = 0) -> InvertibleResNet:
    torch.manual_seed(seed)
    return InvertibleResNet(2, depth=3, width=8, contraction=0.7).double()


def test_the_density_integrates_to_one() -> None:
    model = flow()
    # F moves no point by more than a factor (1 + c)^3 < 5, so beyond 8 around its center there is nothing left.
    center = model.sample(500, generator=torch.Generator().manual_seed(0)).mean(0)
    line = torch.linspace(-8, 8, 321, dtype=torch.float64)
    points = torch.cartesian_prod(line, line) + center
    with torch.no_grad():
        mass = model.log_density(points).exp().sum() * (line[1] - line[0]) ** 2
    # The midpoint rule of a smooth function at 1/20 of its width.
    assert float(mass) == pytest.approx(1.0, abs=1e-3)


def test_draws_come_back_to_the_normal_numbers_they_are_from() -> None:
    model = flow()
    z = torch.randn(50, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = model.sample(50, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(model(x), z, rtol=0, atol=1e-12)


def test_the_log_density_agrees_with_a_dense_jacobian() -> None:
    model = flow()
    x = torch.randn(5, 2, dtype=torch.float64)
    for one, value in zip(x, model.log_density(x).detach(), strict=True):
        jacobian = torch.func.jacrev(lambda y: model(y[None])[0])(one).detach()
        expected = (
            torch.linalg.slogdet(jacobian).logabsdet
            - model(one[None]).detach().square().sum() / 2
            - math.log(2 * math.pi)
        )
        assert float(value) == pytest.approx(float(expected), abs=1e-10)


def test_its_constant_is_proven() -> None:
    model = flow()
    bound = lipkit.lipschitz(model, torch.zeros(1, 2, dtype=torch.float64), DAG(), lower=Sampling(count=4))
    assert float(bound.value) <= model.gain * (1 + 1e-12) <= 1.7**3 * (1 + 1e-6)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="depth of at least 1, got 0"):
        InvertibleResNet(2, depth=0)
    with pytest.raises(ArgumentError, match=r"must lie in \(0, 1\), got 1"):
        InvertibleResNet(2, contraction=1.0)
    with pytest.raises(ArgumentError, match="count of at least 1, got 0"):
        flow().sample(0)
    with pytest.raises(ArgumentError, match="positive distance, got -1"):
        flow().sample(2, tolerance=-1.0)


def test_a_condensed_flow_computes_the_same_and_says_why_it_cannot_be_inverted() -> None:
    model = flow()
    plain, x = lnn.condense(model), torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(plain(x), model(x))
    assert isinstance(plain, InvertibleResNet)
    for question in (lambda: plain.sample(2), lambda: plain.log_density(x)):
        with pytest.raises(UnsupportedError, match=r"inside lipkit.nn.frozen"):
            question()
