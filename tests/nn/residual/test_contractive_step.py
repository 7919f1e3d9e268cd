"""Steps of contractive equations: trajectories, a solver of scipy as reference, and the printed inequality."""

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.residual.contractive_step import MidpointRotation
from support.layers.geometries import FILLS, filled
from support.proven import proven


def skew(layer: lnn.ContractiveStep) -> Tensor:
    """S of the equation, for the free numbers of the rotation."""
    raw = layer.rotation.get_parameter("parametrizations.weight.original").detach()
    return 2 * (raw.mT - raw)


def with_time(layer: lnn.ContractiveStep, time: float) -> lnn.ContractiveStep:
    """The same equation, over another time."""
    made = lnn.ContractiveStep(4, 6, time, activation=nn.Tanh()).double()
    made.load_state_dict(layer.state_dict())
    return made


def test_steps_tend_to_the_solution_of_the_equation() -> None:
    torch.manual_seed(0)
    layer = lnn.ContractiveStep(4, 6, activation=nn.Tanh()).double()
    with torch.no_grad():
        layer.rotation.get_parameter("parametrizations.weight.original").normal_(0, 0.3)
    descent = cast(lnn.CPL, layer.descent)
    weight = descent.weight.detach()
    c, s = descent.coefficient_of(weight).detach(), skew(layer)
    assert descent.bias is not None
    bias = descent.bias.detach()

    def field(_: float, x: np.ndarray) -> np.ndarray:
        z = torch.from_numpy(x)
        return (-(c * torch.tanh(weight @ z + bias)) @ weight + s @ z).numpy()

    x = torch.randn(4, dtype=torch.float64)
    exact = torch.from_numpy(solve_ivp(field, (0, 1), x.numpy(), rtol=1e-10, atol=1e-12).y[:, -1])
    errors = []
    for n in (16, 32, 64):
        step, z = with_time(layer, 1 / n), x
        with torch.no_grad():
            for _ in range(n):
                z = step(z)
        errors.append(float((z - exact).norm()))
    # First order: twice the steps, half the error, up to terms of the second order.
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)
    assert errors[2] < 0.01


@pytest.mark.parametrize("fill", sorted(FILLS))
@pytest.mark.parametrize("time", [1.0, 0.3])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=3)
def test_trajectories_never_separate(fill: str, time: float, seed: int) -> None:
    torch.manual_seed(seed)
    steps = [lnn.ContractiveStep(4, 5, time) for _ in range(5)]
    for step in steps:
        filled(step.rotation, fill)
        descent = cast(lnn.CPL, step.descent)
        with torch.no_grad():
            descent.weight.copy_(FILLS[fill](descent.weight))
    x, y = (10 * torch.randn(8, 4, dtype=torch.float64) for _ in range(2))
    for step in steps:
        apart = (x - y).norm(dim=1)
        # The numbers of float32, evaluated in float64.
        plain = lnn.condense(step).double()
        with torch.no_grad():
            x, y = plain(x), plain(y)
        # Rounding of numbers of size ten.
        assert bool(((x - y).norm(dim=1) <= apart * (1 + 1e-12) + 1e-13).all())


def test_without_a_potential_nothing_is_lost() -> None:
    layer = lnn.ContractiveStep(4).double()
    with torch.no_grad():
        cast(lnn.CPL, layer.descent).weight.zero_()
        layer.rotation.get_parameter("parametrizations.weight.original").normal_()
    x = torch.randn(5, 4, dtype=torch.float64)
    # The rotation is smaller by 2^-39 so that rounding has room.
    torch.testing.assert_close(layer(x).norm(dim=1), x.norm(dim=1), rtol=4e-12, atol=0)


def test_images() -> None:
    """The rotation turns the channels of each pixel: the Jacobian on an image, and the constant that is captured."""
    torch.manual_seed(1)
    layer = lnn.ContractiveStepConv(2, 3, 4, 0.7, rank=1).double()
    x = torch.randn(1, 2, 6, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda z: layer(z[None])[0])(x[0]).detach().reshape(12, 12)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= 1 + 1e-13
    # The number is rounded up along the way.
    assert 1 <= proven(layer, x) <= 1 + 1e-12
    # A condensed step is read part by part: x + t (step(x) - x) has constant (1 - t) + t, and norms a slack.
    assert proven(lnn.condense(layer), x) <= 1 + 1e-4


def test_the_printed_inequality_is_reversed() -> None:
    """x' = -x, the gradient flow of x^2/2: points that are 1 apart are exp(-1) apart at time 1."""
    found = solve_ivp(lambda _, x: -x, (0, 1), [1.0, 0.0], rtol=1e-10, atol=1e-12).y[:, -1]
    assert found[0] - found[1] == pytest.approx(np.exp(-1), rel=1e-8)
    assert found[0] - found[1] < 1


def test_bad_arguments() -> None:
    for time in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match="take several steps"):
            lnn.ContractiveStep(3, time=time)
    with pytest.raises(UnsupportedError, match="about 3"):
        lnn.ContractiveStep(3, activation=nn.GELU())
    with pytest.raises(UnsupportedError, match="as many outputs as inputs"):
        lnn.Linear(3, 4, method=MidpointRotation(1.0))
