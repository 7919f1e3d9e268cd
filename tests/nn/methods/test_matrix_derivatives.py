"""Derivatives of all methods for matrices, of first and second order, and transformed by torch.func."""

import pytest
import torch
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.newton_schulz import NewtonSchulz
from lipkit.nn.methods.polar import Polar
from lipkit.nn.methods.singular_clip import SingularClip
from support.layers.matrix_methods import CONTRACTIONS, ISOMETRIES, METHODS, gaussian, orthogonal


@pytest.mark.parametrize("shape", [(3, 3), (4, 2)], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_first_and_second_derivatives_against_finite_differences(method: WeightMethod, shape: tuple[int, int]) -> None:
    # Away from kinks: entries are clipped or not by a margin, singular values are on both sides of one.
    raw = (0.8 * gaussian(*shape, 4)).requires_grad_()
    torch.autograd.gradcheck(lambda x: method(x, Geometry(1, *shape)), raw)
    torch.autograd.gradgradcheck(lambda x: method(x, Geometry(1, *shape)), raw)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_vmap_and_jacrev(method: WeightMethod) -> None:
    geometry = Geometry(1, 4, 3)
    batch = torch.stack([gaussian(4, 3, seed) for seed in range(3)])

    def weight(raw: Tensor) -> Tensor:
        return method(raw, geometry)

    mapped = torch.func.vmap(weight)(batch)
    torch.testing.assert_close(mapped, torch.stack([weight(raw) for raw in batch]), atol=1e-10, rtol=0)
    jacobians = torch.func.vmap(torch.func.jacrev(weight))(batch)
    alone = torch.autograd.functional.jacobian(weight, batch[1])
    torch.testing.assert_close(jacobians[1], alone, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_gradient_of_a_gradient_penalty_by_torch_func(method: WeightMethod) -> None:
    geometry, x = Geometry(1, 4, 3), gaussian(1, 3, 7)[0, 0]

    def penalty(raw: Tensor) -> Tensor:
        def energy(point: Tensor) -> Tensor:
            return (method(raw, geometry)[0] @ point).tanh().square().sum()

        return torch.func.grad(energy)(x).square().sum()

    raw = gaussian(4, 3, 8)
    gradient = torch.func.grad(penalty)(raw)
    direction = gaussian(4, 3, 9)
    step = 1e-5
    slope = (penalty(raw + step * direction) - penalty(raw - step * direction)) / (2 * step)
    # Central differences: 1e-10 truncation, 1e-11 rounding.
    torch.testing.assert_close((gradient * direction).sum(), slope, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("method", [Polar(), NewtonSchulz(25)], ids=str)
def test_projections_do_not_move_along_the_free_matrix(method: WeightMethod) -> None:
    raw = gaussian(7, 4).requires_grad_()
    weight = method(raw, Geometry(1, 7, 4))
    (gradient,) = torch.autograd.grad((weight * gaussian(7, 4, 1)).sum(), raw)
    assert float((gradient * raw.detach()).sum().abs()) < 1e-9


def test_the_closed_form_agrees_with_unrolled_steps() -> None:
    for shape in ((6, 6), (9, 4), (3, 8)):
        raw, cotangent = gaussian(*shape).requires_grad_(), gaussian(*shape, 1)
        closed, unrolled = (
            torch.autograd.grad((m(raw, Geometry(1, *shape)) * cotangent).sum(), raw)[0]
            for m in (Polar(), NewtonSchulz(40))
        )
        torch.testing.assert_close(closed, unrolled, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("method", [Polar(), SingularClip()], ids=str)
def test_derivatives_are_finite_where_singular_values_meet(method: WeightMethod) -> None:
    # The derivative of the decomposition itself is infinite here, to first and second order.
    for scale in (0.5, 1.0, 2.0):
        raw = (scale * orthogonal(5, 5)).requires_grad_()
        weight = method(raw, Geometry(1, 5, 5))
        (first,) = torch.autograd.grad((weight * gaussian(5, 5, 1)).sum(), raw, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), raw)
        assert bool(torch.isfinite(first).all())
        assert bool(torch.isfinite(second).all())
        # Twice as far from the origin, half the derivative; below one singular clipping is the identity.
        assert float(torch.linalg.vector_norm(first.detach())) <= 1.0001 * float(
            torch.linalg.vector_norm(gaussian(5, 5, 1))
        ) / (scale if isinstance(method, Polar) else 1)


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_second_derivative_of_clipping_at_equal_singular_values(scale: float) -> None:
    """Where all values are above one, clipping is the projection: the two closed forms have to agree."""
    raw, cotangent = (scale * orthogonal(4, 4)).requires_grad_(), gaussian(4, 4, 1)
    found: list[Tensor] = []
    for method in (Polar(), SingularClip()):
        weight = method(raw, Geometry(1, 4, 4))
        (first,) = torch.autograd.grad((weight * cotangent).sum(), raw, create_graph=True)
        (second,) = torch.autograd.grad((first * gaussian(4, 4, 2)).sum(), raw)
        found += [first, second]
    torch.testing.assert_close(found[0], found[2], atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(found[1], found[3], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", [*ISOMETRIES, *CONTRACTIONS], ids=str)
def test_float32_gradients_are_those_of_float64(method: WeightMethod) -> None:
    raw = orthogonal(16, 16) + 0.05 * gaussian(16, 16)
    if str(method).startswith("clipped"):
        raw = raw / 4
    grads: list[Tensor] = []
    for dtype in (torch.float64, torch.float32):
        free = raw.to(torch.float32).to(dtype).requires_grad_()
        weight = method(free, Geometry(1, 16, 16))
        grads.append(torch.autograd.grad((weight * gaussian(16, 16, 1).to(dtype)).sum(), free)[0].to(torch.float64))
    # Condition below 2 times some hundred roundings of float32.
    assert float(torch.linalg.vector_norm(grads[0] - grads[1])) <= 1e-4 * float(torch.linalg.vector_norm(grads[0]))


def test_second_derivatives_by_torch_func_and_third_ones_are_refused() -> None:
    geometry, cotangent, raw = Geometry(1, 4, 3), gaussian(4, 3, 1), gaussian(4, 3, 2)

    def energy(free: Tensor) -> Tensor:
        return (SingularClip()(free, geometry) * cotangent).sum()

    found = torch.func.jacrev(torch.func.jacrev(energy))(raw)
    expected = torch.autograd.functional.hessian(energy, raw)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    free = raw.requires_grad_()
    for _ in range(2):
        (free,) = torch.autograd.grad(energy(raw) if free is raw else free.square().sum(), raw, create_graph=True)
    with pytest.raises(UnsupportedError, match="first and second derivatives only"):
        torch.autograd.grad(free.square().sum(), raw)
