"""Simplex maps against quadratic programs, dense Jacobians and difference quotients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError

SOFT = [
    rs.Softmax(),
    rs.Softmax(0.3),
    rs.Sparsemax(),
    rs.Sparsemax(temperature=0.4),
    rs.Sparsemax(mass=3.0),
    rs.Sparsemax(mass=0.2, temperature=2.5),
]
# torch loads its rules of forward mode with a warning of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
each = pytest.mark.parametrize("tau", SOFT, ids=str)
seeds = st.integers(0, 2**31)


def draw(seed: int, rows: int = 8, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = 2 + seed % 6
    return scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("tau", [*SOFT, rs.Hardmax()], ids=str)
@given(seed=seeds, scale=st.sampled_from([0.01, 1.0, 100.0]))
def test_votes_lie_on_the_simplex_and_keep_the_order(tau: rs.SimplexMap, seed: int, scale: float):
    z = draw(seed, scale=scale)
    votes = tau(z)
    assert bool((votes >= 0).all())
    # Sums of at most seven float64 numbers up to the mass.
    torch.testing.assert_close(votes.sum(-1), torch.full((8,), tau.mass, dtype=torch.float64), rtol=1e-14, atol=0)
    order = z.argsort(-1)
    assert bool((votes.gather(-1, order).diff(dim=-1) >= -1e-15 * tau.mass).all())
    # A shift of all logits changes what rounding makes of them, nothing else.
    torch.testing.assert_close(tau(z + 7.5), votes, rtol=0, atol=1e-13 * scale / getattr(tau, "temperature", 1.0))


@pytest.mark.parametrize("mass", [0.2, 1.0, 3.0])
def test_sparsemax_is_the_projection_that_a_solver_finds(mass: float):
    for z in draw(5, rows=5, scale=2.0):
        found = minimize(
            lambda p, z=z: ((p - z.numpy() / 0.7) ** 2).sum(),
            np.full(len(z), mass / len(z)),
            bounds=[(0.0, mass)] * len(z),
            constraints={"type": "eq", "fun": lambda p: p.sum() - mass},
            options={"ftol": 1e-14},
        )
        # SLSQP stops near 1e-7 in the argument.
        torch.testing.assert_close(rs.Sparsemax(mass, 0.7)(z), torch.tensor(found.x), rtol=0, atol=1e-5)


@each
@given(seed=seeds, scale=st.sampled_from([0.05, 1.0, 5.0]))
def test_dense_jacobians_keep_the_three_constants(tau: rs.SimplexMap, seed: int, scale: float):
    for z in draw(seed, rows=2, scale=scale):
        jacobian = torch.func.jacrev(tau)(z)
        torch.testing.assert_close(torch.func.jacfwd(tau)(z), jacobian)
        slack = 1 + 1e-13  # of the decomposition
        assert torch.linalg.matrix_norm(jacobian, 2).item() <= tau.joint * slack
        assert jacobian.norm(dim=-1).max().item() <= tau.coordinate * slack
        assert (jacobian[:, None] - jacobian).norm(dim=-1).max().item() <= tau.pair * slack


@each
@given(seed=seeds, scale=st.sampled_from([0.05, 1.0, 5.0]))
def test_differences_of_votes_keep_the_three_constants(tau: rs.SimplexMap, seed: int, scale: float):
    z = draw(seed, scale=scale)
    a, b = z[:4], z[4:]
    move, distance = tau(a) - tau(b), (a - b).norm(dim=-1)
    slack = 1e-14 * tau.mass  # of the votes
    assert bool((move.norm(dim=-1) <= tau.joint * distance + slack).all())
    assert bool((move.abs().amax(-1) <= tau.coordinate * distance + slack).all())
    assert bool((move.amax(-1) - move.amin(-1) <= tau.pair * distance + slack).all())


@each
def test_constants_are_attained(tau: rs.SimplexMap):
    """At equal logits: of two classes by softmax, of many by sparsemax, whose coordinate constant is a limit."""
    classes = 2 if isinstance(tau, rs.Softmax) else 400
    jacobian = torch.func.jacrev(tau)(torch.zeros(classes, dtype=torch.float64))
    assert torch.linalg.matrix_norm(jacobian, 2).item() == pytest.approx(tau.joint, rel=1e-12)
    assert (jacobian[0] - jacobian[1]).norm().item() == pytest.approx(tau.pair, rel=1e-12)
    limit = 1.0 if isinstance(tau, rs.Softmax) else math.sqrt(1 - 1 / classes)
    assert jacobian[0].norm().item() == pytest.approx(tau.coordinate * limit, rel=1e-12)


@each
def test_derivatives_agree_with_finite_differences(tau: rs.SimplexMap):
    z = draw(3).requires_grad_()
    assert torch.autograd.gradcheck(tau, z, check_forward_ad=True, check_batched_grad=True)


def test_the_backward_of_sparsemax_centres_the_gradient_on_its_support():
    z = torch.tensor([1.0, 0.8, -3.0], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([2.0, 5.0, 11.0], dtype=torch.float64)
    (pulled,) = torch.autograd.grad(rs.Sparsemax()(z), z, g)
    assert pulled.tolist() == [-1.5, 1.5, 0.0]


def test_the_mass_scales_votes_and_logits_together():
    z = draw(11)
    torch.testing.assert_close(rs.Sparsemax(mass=2.5)(z), 2.5 * rs.Sparsemax()(z / 2.5))


@pytest.mark.parametrize("kind", [rs.Softmax, lambda t: rs.Sparsemax(temperature=t)])
def test_low_temperatures_give_the_largest_logit_all_votes(kind):
    z = draw(8)
    torch.testing.assert_close(kind(1e-5)(z), rs.Hardmax()(z))


@pytest.mark.parametrize("tau", [*SOFT, rs.Hardmax()], ids=str)
def test_half_precision_is_widened_and_large_logits_stay_finite(tau: rs.SimplexMap):
    z = torch.tensor([[3e38, 1.0, -3e38], [2.0, 2.0, 1.0], [0.0, -math.inf, 0.0]])
    votes = tau(z.bfloat16())
    assert votes.dtype is torch.float32
    assert bool(votes.isfinite().all())
    torch.testing.assert_close(votes[0], tau.mass * torch.tensor([1.0, 0.0, 0.0]))
    assert tau(z.double()).dtype is torch.float64


def test_a_threshold_inflates_the_variance():
    """U(1/2 - e, 1/2 + e) has the variance e^2 / 3; one vote for the larger of (u, 1 - u) has 1/4."""
    e = 0.05
    u = 0.5 - e + 2 * e * torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    votes = rs.Hardmax()(torch.stack([u, 1 - u], -1))[:, 0]
    # Sample variances of 200,000 draws are off by about one percent at most.
    assert u.var().item() == pytest.approx(e**2 / 3, rel=0.02)
    assert votes.var().item() == pytest.approx(0.25, rel=0.02)
    soft = rs.Sparsemax()(torch.stack([u, 1 - u], -1))[:, 0]  # the identity on points of the simplex
    torch.testing.assert_close(soft, u)


def test_parameters_must_be_positive_and_of_a_usual_size():
    for wrong in (0.0, 1e-50, 1e300, math.nan):
        with pytest.raises(ArgumentError, match="temperature of a simplex map is a number from 1e-30 to 1e30, got"):
            rs.Softmax(wrong)
        with pytest.raises(ArgumentError, match="mass of a simplex map is a number from 1e-30 to 1e30, got"):
            rs.Sparsemax(mass=wrong)
    for tau in (rs.Softmax(1e-30), rs.Sparsemax(1e-30, 1e-30), rs.Sparsemax(1e30, 1e30)):
        assert tau(torch.tensor([1.0, 0.5, 0.0])).sum().item() == pytest.approx(tau.mass, rel=1e-6)
