"""Normalisation: the constants 1 / sqrt(eps) and 1 / s_min, where they are attained, and the least spread in a box."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lipkit.errors import ArgumentError
from lipkit.regions import Reach
from lipkit.trace.nodes import Normalization, Unit, VectorNorm
from lipkit.trace.nodes._small_norms import spectral_above, spectral_within
from lipkit.trace.nodes._variance import centered_box, least_spread


def ball(center: torch.Tensor, radius: float) -> Reach:
    wide = torch.full_like(center, math.inf)
    return Reach(-wide, wide, center, torch.tensor(radius, dtype=torch.float64))


def jacobian(node: Normalization | Unit, z: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda v: node(v[None])[0])(z)


@pytest.mark.parametrize(("eps", "printed"), [(1e-5, 316.23), (1e-6, 1000.0)])
@pytest.mark.parametrize("centered", [True, False])
def test_on_the_whole_space_it_is_one_over_the_root_of_eps(eps: float, printed: float, centered: bool):
    node = Normalization((3, 8), eps, centered)
    constant = node.log_constant(2.0).exp().item()
    assert constant == pytest.approx(printed, rel=1e-4)
    assert 1 / math.sqrt(eps) <= constant <= 1 / math.sqrt(eps) * (1 + 1e-13)
    # Attained at a constant vector (at 0 without centering).
    z = torch.full((8,), 3.0 if centered else 0.0, dtype=torch.float64)
    found = torch.linalg.matrix_norm(jacobian(Normalization((8,), eps, centered), z), 2)
    assert found.item() == pytest.approx(constant, rel=1e-9)


def test_on_a_ball_the_deviation_shrinks_by_radius_over_root_d():
    torch.manual_seed(0)
    x, r, eps = torch.randn(16, dtype=torch.float64), 0.5, 1e-5
    node = Normalization((16,), eps, True)
    std = x.std(unbiased=False).item() - r / 4
    bound = node.within(ball(x, r)).log_constant(2.0).exp().item()
    assert bound == pytest.approx(1 / math.sqrt(std**2 + eps), rel=1e-9)
    # The point of the ball with the smallest deviation attains it.
    centered = x - x.mean()
    nearest = x - r * (1 - 1e-12) * centered / centered.norm()
    assert torch.linalg.matrix_norm(jacobian(node, nearest), 2).item() == pytest.approx(bound, rel=1e-9)


def test_two_entries_that_are_centered_have_only_one_direction():
    node = Normalization((2,), 0.01, True)
    z = torch.tensor([1.0, -1.0], dtype=torch.float64)
    local = node.within(ball(z, 0.0))
    # eps / s^3, far below 1 / s.
    assert local.log_constant(2.0).exp().item() == pytest.approx(0.01 / 1.01**1.5, rel=1e-9)
    assert torch.linalg.matrix_norm(jacobian(node, z), 2).item() == pytest.approx(0.01 / 1.01**1.5, rel=1e-9)


def test_without_eps_there_is_no_constant_but_on_a_region():
    node = Normalization((4,), 0.0, False)
    assert all(node.log_constant(p) == math.inf for p in (1.0, 2.0, math.inf))
    z = torch.tensor([3.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    assert node.within(ball(z, 1.0)).log_constant(2.0).exp().item() == pytest.approx(2 / 4.0, rel=1e-9)
    assert Unit((4,), 0.0).log_constant(2.0) == math.inf


@pytest.mark.parametrize("d", [1, 2, 3, 9])
def test_rms_norm_and_unit_attain_their_linf_constants(d: int):
    # One entry t against d - 1 equal ones, at the best angle, is where the row sums are largest.
    angles = torch.linspace(0, math.pi / 2, 2001, dtype=torch.float64)
    rest = (d - 1) ** 0.5 if d > 1 else 1.0
    shape = torch.cat([angles.sin()[:, None], (angles.cos() / rest)[:, None].expand(-1, d - 1)], 1)
    for node, sizes in ((Normalization((d,), 0.04, False), torch.logspace(-3, 2, 60)), (Unit((d,), 0.5), [0.5000001])):
        largest = 0.0
        for size in sizes:
            points = float(size) * shape[:: 1 if isinstance(node, Unit) else 20]
            found = torch.vmap(torch.func.jacrev(lambda v, node=node: node(v[None])[0]))(points)
            largest = max(largest, torch.linalg.matrix_norm(found, math.inf).max().item())
        bound = node.log_constant(math.inf).exp().item()
        assert bound * 0.99 <= largest <= bound * (1 + 1e-12)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 3)), min_size=2, max_size=6))
def test_the_least_spread_in_a_box_is_that_of_a_solver(ends: list[tuple[float, float]]):
    low = torch.tensor([a for a, _ in ends], dtype=torch.float64)
    high = low + torch.tensor([w for _, w in ends], dtype=torch.float64)
    found = least_spread(low, high).item()
    start = ((low + high) / 2).numpy()
    # An independent minimiser over the box; it stops a little above the minimum.
    solved = minimize(
        lambda z: float(((z - z.mean()) ** 2).sum()),
        start,
        jac=lambda z: 2 * (z - z.mean()),
        bounds=list(zip(low.tolist(), high.tolist(), strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-12},
    )
    assert found**2 <= solved.fun + 1e-12
    assert found**2 >= solved.fun - 1e-6 * (1 + solved.fun)


def test_the_centered_box_is_attained():
    low = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    high = torch.tensor([1.0, 0.5, 5.0], dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    z = low + (high - low) * corners
    found = centered_box(low, high)
    centered = z - z.mean(1, keepdim=True)
    assert torch.allclose(found[0], centered.amin(0), atol=1e-13)
    assert torch.allclose(found[1], centered.amax(0), atol=1e-13)


def test_outputs_have_length_root_d_at_most():
    node = Normalization((2, 5), 1e-5, True)
    wide = torch.full((2, 5), math.inf, dtype=torch.float64)
    found = node.reach(Reach(-wide, wide, 0 * torch.ones(2, 5).double(), torch.tensor(math.inf).double()))
    assert found.high.max().item() == pytest.approx(2.0)
    assert found.radius.item() == pytest.approx(math.sqrt(10))


@pytest.mark.parametrize(
    ("order", "p", "constant"), [(1, 2, 3**0.5), (1, math.inf, 3), (2, math.inf, 3**0.5), (2, 1, 1)]
)
def test_vector_norms_have_the_constant_of_norm_equivalence(order: float, p: float, constant: float):
    assert VectorNorm((4, 3), float(order)).log_constant(float(p)).exp().item() == pytest.approx(constant, rel=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (2, 7), (7, 2), (1, 5), (5, 1)])
def test_spectral_bounds_hold_and_are_close(shape: tuple[int, int]):
    torch.manual_seed(1)
    matrices = torch.randn(30, *shape, dtype=torch.float64)
    truth = torch.linalg.matrix_norm(matrices, 2)
    found = spectral_above(matrices)
    assert (found >= truth * (1 - 1e-14)).all()
    # rank^(1 / 64) - 1 is 1.8 % for rank 3, 2.6 % for equal singular values of rank 5.
    assert (found <= truth * 1.03).all()
    spread = 0.2 * torch.rand(30, *shape, dtype=torch.float64)
    bound = spectral_within(matrices - spread, matrices + spread, matrices, torch.tensor(0.3, dtype=torch.float64))
    for _ in range(10):
        step = spread * (2 * torch.rand(30, *shape, dtype=torch.float64) - 1)
        step = step * (0.3 / torch.linalg.matrix_norm(step)).clamp(max=1.0)[:, None, None]
        assert (torch.linalg.matrix_norm(matrices + step, 2) <= bound * (1 + 1e-12)).all()
    assert spectral_above(torch.zeros(1, 2, 2, dtype=torch.float64)).item() == 0


@pytest.mark.parametrize("make", [lambda: Normalization((), 1.0, True), lambda: Normalization((3,), -1.0, True)])
def test_normalisation_needs_entries_and_a_sign(make):
    with pytest.raises(ArgumentError, match="eps >= 0"):
        make()
    with pytest.raises(ArgumentError, match="eps >= 0"):
        Unit((3,), -1.0)
    with pytest.raises(ArgumentError, match="order >= 1"):
        VectorNorm((3,), 0.5)
