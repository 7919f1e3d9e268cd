"""The landing field: its parts, its steps, and the radius that they never leave."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.optim import Landing
from lipkit.optim.landing import landing_field, safe_step
from support.orthonormal import orthonormal, parameter


def off(point: Tensor) -> Tensor:
    return point.mH @ point - torch.eye(point.shape[-1], dtype=point.dtype)


def field_by_hand(point: Tensor, gradient: Tensor, attraction: float) -> tuple[Tensor, Tensor]:
    """skew(G X') X and attraction (X X' - I) X, with n x n matrices."""
    relative = gradient @ point.mH - point @ gradient.mH
    normal = point @ point.mH - torch.eye(len(point), dtype=point.dtype)
    return relative @ point / 2, attraction * normal @ point


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 999), st.booleans())
def test_the_field_is_its_formula_and_its_parts_are_orthogonal(cols: int, more: int, seed: int, unitary: bool) -> None:
    torch.manual_seed(seed)
    dtype = torch.complex128 if unitary else torch.float64
    # Anywhere, not only near the manifold.
    point, gradient = torch.randn(2, cols + more, cols, dtype=dtype).unbind()
    descent, pull = field_by_hand(point, gradient, 0.7)
    found = landing_field(point[None], gradient[None], off(point)[None], 0.7)[0]
    scale = 1 + float(point.norm()) ** 3 + float(gradient.norm()) * float(point.norm()) ** 2
    assert torch.allclose(found, descent + pull, atol=1e-13 * scale)
    assert abs(float((descent.conj() * pull).sum().real)) < 1e-13 * scale**2


@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 999),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0),
    st.floats(0.01, 10.0),
    st.floats(-6, 6),
    st.floats(0.0, 1.0),
)
def test_no_step_up_to_the_safe_one_leaves_the_radius(
    cols: int, more: int, seed: int, radius: float, inside: float, attraction: float, size: float, part: float
) -> None:
    torch.manual_seed(seed)
    frame, turn = orthonormal(cols + more, cols, seed), orthonormal(cols, cols, seed + 1)
    # Any matrix with ||X'X - I||_F = inside * radius.
    values = torch.randn(cols, dtype=torch.float64)
    values = inside * radius * values / values.norm()
    point = frame @ torch.diag((1 + values).sqrt()) @ turn
    gradient = 10**size * torch.randn_like(point)
    field = landing_field(point[None], gradient[None], off(point)[None], attraction)
    distance, length = off(point).norm()[None], field.norm()[None]
    step = part * float(safe_step(distance, length, attraction, radius))
    after = float(off(point - step * field[0]).norm())
    # The bound of the proof, and the radius; rounding of a few products of numbers near one.
    d, f = float(distance), float(length)
    assert after <= (1 - 2 * step * attraction * (1 - d)) * d + (step * f) ** 2 + 1e-12
    assert after <= radius + 1e-12


def test_the_safe_step_is_long_where_there_is_room() -> None:
    # On the manifold h f = r^(1/2), far from the pull's limit; without a gradient the limit itself.
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert float(safe_step(zero, 100 * one, 1.0, 0.25)) == pytest.approx(0.005)
    assert float(safe_step(zero, zero, 4.0, 0.25)) == 0.125
    # At the edge the pull leads back: f^2 h = 2 attraction d (1 - d).
    assert float(safe_step(0.5 * one, 10 * one, 1.0, 0.5)) == pytest.approx(0.005)


def test_gradients_of_every_size_never_lead_out() -> None:
    torch.manual_seed(0)
    weight = parameter(7, 5)
    optimizer = Landing([weight], lr=10.0, attraction=0.5, radius=0.3)
    farthest = 0.0
    for step in range(1000):
        weight.grad = 10.0 ** (step % 13 - 6) * torch.randn_like(weight)
        optimizer.step()
        farthest = max(farthest, float(off(weight.detach()).norm()))
    # It comes near the edge, so the radius is what held it.
    assert 0.25 < farthest <= 0.3 + 1e-12


def test_it_lands() -> None:
    """Without gradient ||X'X - I|| falls by 1 - 2 lr attraction each step, and more slowly at first."""
    weight = parameter(6, 4)
    with torch.no_grad():
        weight.mul_(1.04)
    optimizer = Landing([weight], lr=0.1)
    before = float(off(weight.detach()).norm())
    for _ in range(40):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    after = float(off(weight.detach()).norm())
    assert after < before * (1 - 0.2 * (1 - before)) ** 40
    assert after > before * (1 - 0.2 * (1 + before)) ** 40


def test_weights_that_were_changed_beyond_the_radius_are_refused() -> None:
    weight = parameter(6, 4)
    optimizer = Landing([weight], lr=0.1)
    with torch.no_grad():
        weight.mul_(2.0)
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ArgumentError, match=rf"{3 * math.sqrt(4):.3g}.*orthonormal_"):
        optimizer.step()


def test_float32_stays_inside_up_to_rounding() -> None:
    torch.manual_seed(0)
    weight = parameter(64, 48, dtype=torch.float32)
    optimizer = Landing([weight], lr=1.0, momentum=0.9)
    for _ in range(200):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        # Entries of the Gram matrix are off by some 1e-6, 48 x 48 of them.
        assert float(off(weight.detach().double()).norm()) < 0.5 + 1e-4


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_huge_gradients_stay_within_the_radius(dtype: torch.dtype, size: float):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.eye(4, dtype=dtype))
    optimizer = Landing([weight], lr=0.1, momentum=0.5)
    for _ in range(5):
        weight.grad = torch.randn(4, 4, dtype=dtype) * size
        optimizer.step()
    defect = weight.detach().mT @ weight.detach() - torch.eye(4, dtype=dtype)
    # The radius, and what products of four numbers in float32 add.
    assert float(torch.linalg.matrix_norm(defect)) <= 0.5 * (1 + 1e-5)


def test_a_step_that_overflows_is_refused_before_anything_moves():
    torch.manual_seed(0)
    start = torch.linalg.qr(torch.randn(4, 4)).Q
    weight = torch.nn.Parameter(start.clone())
    optimizer = Landing([weight], lr=0.1, momentum=0.5)
    weight.grad = 3e38 * torch.randn(4, 4).sign()
    with pytest.raises(NonFiniteError, match="clip gradients"):
        optimizer.step()
    assert torch.equal(weight.detach(), start)
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    assert bool(weight.isfinite().all())
