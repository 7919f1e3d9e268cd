"""Björck's iteration: how far it reaches, what it converges to, and the way over the Gram matrix."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods.bjorck import Bjorck, by_gram, factors
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.methods.exponential import Exponential
from support.layers.matrix_methods import degenerate, gaussian, orthogonal

# Square, a little taller than wide, and the shapes whose steps are done on the smaller side.
SHAPES = ((20, 20), (24, 20), (60, 20), (20, 90))
DTYPES = (torch.float32, torch.float64)


def with_values(values: Tensor, rows: int, cols: int) -> Tensor:
    left, _, right = torch.linalg.svd(gaussian(rows, cols), full_matrices=False)
    return (left * values) @ right


def singular_values(weight: Tensor) -> Tensor:
    return torch.linalg.svdvals(weight.detach().to(torch.float64))


def plain(values: Tensor, scales: tuple[float, ...]) -> Tensor:
    """The singular values after the steps."""
    for scale in (*scales, 1.0):
        values = 1.5 * scale * values - 0.5 * (scale * values) ** 3
    return values


def test_factors_are_those_of_the_two_ends() -> None:
    found = factors(7)
    least = 1 / 47.3
    for scale in found:
        # The closed form of the docstring; 47.3 has three digits, and the step is flat in them.
        assert scale == pytest.approx(math.sqrt(3 / (1 + least + least**2)), rel=1e-3)
        least = 1.5 * scale - 0.5 * scale**3
    assert found[0] < math.sqrt(3)
    assert all(a > b for a, b in pairwise(found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_promised_range_arrives(shape: tuple[int, int], dtype: torch.dtype) -> None:
    values = torch.logspace(0, -3, 20, dtype=torch.float64)
    # The Frobenius norm of the Gram matrix is the smaller of the two bounds, or the row sum makes b smaller still.
    size = float(torch.linalg.vector_norm(values.square()).sqrt())
    weight = Bjorck().matrix(with_values(values, *shape).to(dtype))
    found = singular_values(weight)
    assert float(found.max()) <= 1 + 1e-13
    # Storing takes 2^-24 (sqrt(90) + 4) at most, and rounding of the Gram matrix another 1e-6 in float32.
    assert int((found >= 1 - 3e-6).sum()) >= int((values > size / 58).sum()) > 10


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 11])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_are_those_of_the_polynomial(shape: tuple[int, int], steps: int) -> None:
    values = torch.linspace(0.05, 1.0, 20, dtype=torch.float64)
    raw = with_values(values, *shape)
    tall = raw if shape[0] >= shape[1] else raw.mT
    gram = (tall.mT @ tall)[0]
    size = math.sqrt(min(float(torch.linalg.vector_norm(gram)), float(gram.abs().sum(-1).max())))
    expected = plain(values / size, factors(steps - 1)).sort(descending=True).values
    # Float64 throughout: 1e-8 covers what the last step is made smaller by for its own rounding.
    torch.testing.assert_close(singular_values(Bjorck(steps).matrix(raw))[0], expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_orthogonal_matrices_stay(shape: tuple[int, int]) -> None:
    weight = orthogonal(*shape)
    # 2e-12 from the range's ends, and the room for rounding.
    torch.testing.assert_close(Bjorck().matrix(weight), weight, atol=1e-8, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steps", [2, 8])
def test_degenerate_matrices_on_the_smaller_side(steps: int, dtype: torch.dtype) -> None:
    for name, raw in degenerate(30, 8).items():
        free = raw.to(dtype).requires_grad_()
        weight = by_gram(free, factors(steps - 1), free.dtype)
        assert float(singular_values(weight).max()) <= 1 + 1e-13, name
        (gradient,) = torch.autograd.grad((weight * gaussian(30, 8, 3).to(dtype)).sum(), free)
        assert bool(torch.isfinite(gradient).all()), name


def test_a_failed_iteration_is_repaired_by_the_last_step() -> None:
    # Factors beyond 3^(1/2) throw singular values far above 1: the proof on the Gram matrix has to notice.
    weight = by_gram(gaussian(30, 8), (2.5, 2.5), torch.float64)
    assert 0.1 < float(singular_values(weight).max()) <= 1 + 1e-13


@pytest.mark.parametrize("steps", [3, 8])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (6, 2), (2, 5)], ids=str)
def test_first_and_second_derivatives(shape: tuple[int, int], steps: int) -> None:
    raw = (0.8 * gaussian(*shape, 4)).requires_grad_()
    assert torch.autograd.gradcheck(Bjorck(steps).matrix, raw)
    # Second differences of a map with slopes of some hundred.
    assert torch.autograd.gradgradcheck(Bjorck(steps).matrix, raw, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (48, 16)], ids=str)
def test_float32_gradients_are_those_of_float64(shape: tuple[int, int]) -> None:
    raw = orthogonal(*shape) + 0.05 * gaussian(*shape)
    found: list[Tensor] = []
    for dtype in DTYPES:
        free = raw.to(torch.float32).to(dtype).requires_grad_()
        weight = Bjorck().matrix(free)
        found += torch.autograd.grad((weight * gaussian(*shape, 1).to(dtype)).sum(), free)
    # Condition below 2 times some hundred roundings of float32.
    error = torch.linalg.vector_norm(found[0].double() - found[1])
    assert float(error) <= 1e-4 * float(torch.linalg.vector_norm(found[1]))


# torch loads its own table for forward mode with a function it deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("shape", [(6, 6), (12, 4), (4, 12)])
@pytest.mark.parametrize("method", [Bjorck(), Cayley(), Exponential()])
def test_forward_derivatives_are_those_of_finite_differences(method: MatrixMethod, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = torch.nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64))[None]
    weight = weight + 0.2 * torch.randn(1, *shape, dtype=torch.float64)
    direction = torch.randn_like(weight)
    found = torch.func.jvp(method.matrix, (weight,), (direction,))[1]
    step = 1e-6 * direction
    nearby = (method.matrix(weight + step) - method.matrix(weight - step)) / 2e-6
    # Differences lose 1e-16 / 1e-6 to rounding and 1e-12 times a third derivative to curvature.
    torch.testing.assert_close(found, nearby, rtol=0, atol=1e-8)

    def scalar(w: torch.Tensor) -> torch.Tensor:
        return method.matrix(w).sin().sum()

    forward = torch.func.jacfwd(torch.func.grad(scalar))(weight)
    torch.testing.assert_close(forward, torch.func.jacrev(torch.func.grad(scalar))(weight), rtol=0, atol=1e-11)
