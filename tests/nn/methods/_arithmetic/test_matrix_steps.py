"""The functions that methods for matrices are made of: their derivatives in every branch, and what they launch."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipkit.nn.methods._arithmetic import safe_scaling as _scaling
from lipkit.nn.methods._arithmetic.bjorck_steps import _forward  # pyright: ignore[reportPrivateUsage]
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST, cap, sizes_of
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._isometry import close_isometry, room_of_step
from lipkit.nn.methods.bjorck import Bjorck, factors
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.methods.exponential import Exponential
from support.layers.launches import Launches
from support.layers.matrix_methods import gaussian, orthogonal

Map = Callable[[Tensor], Tensor]
# torch loads its own table for forward mode with a function it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def few_steps(steps: int) -> tuple[Map, Map]:
    """The iteration with its own derivative, and in plain operations."""

    def plain(raw: Tensor) -> Tensor:
        return _forward(raw, room_of_step(raw, raw.dtype), raw.dtype, None, *factors(steps - 1))[0]

    return Bjorck(steps).matrix, plain


def starts() -> dict[str, Tensor]:
    """Where b is from the Frobenius norm, from one row, from several, from both, and from neither."""
    diagonal = torch.diag(torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64))
    return {
        "Frobenius": torch.ones(1, 3, 3, dtype=torch.float64) + 0.1 * gaussian(3, 3),
        "one row": orthogonal(3, 3) + 0.1 * gaussian(3, 3),
        "rows alike": diagonal[None],
        "both": gaussian(3, 1).expand(1, 3, 3) * torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64),
        "neither": LEAST / 20 * gaussian(3, 3),
        "zero": torch.zeros(1, 3, 3, dtype=torch.float64),
    }


def test_the_starts_are_what_they_say() -> None:
    found: dict[str, tuple[bool, int]] = {}
    for name, raw in starts().items():
        level = raw / _scaling.largest(raw)
        square, whole, rows = sizes_of(level.mT @ level)
        found[name] = bool(square == whole), int((rows == square).sum())
    expected = [(True, 0), (False, 1), (False, 2), (True, 1), (False, 0), (False, 0)]
    assert found == dict(zip(starts(), expected, strict=True))


def all_derivatives(function: Map, raw: Tensor) -> list[Tensor]:
    """Derivatives of a weighted sum: its gradient, along a direction, and second ones along it, in both modes."""
    weights, direction = torch.randn(2, *raw.shape, dtype=raw.dtype, generator=torch.Generator().manual_seed(1))

    def value(free: Tensor) -> Tensor:
        return (function(free) * weights).sin().sum()

    def slope(free: Tensor) -> Tensor:
        return (torch.func.grad(value)(free) * direction).sum()

    gradient, forward = torch.func.grad(value)(raw), torch.func.jvp(value, (raw,), (direction,))[1]
    mixed = torch.func.jvp(torch.func.grad(value), (raw,), (direction,))[1]
    return [gradient, forward, torch.func.grad(slope)(raw), mixed]


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("name", list(starts()))
def test_derivatives_of_the_iteration_are_those_of_its_operations(name: str, steps: int) -> None:
    # Free numbers in units of their size, or derivatives are too large to be compared.
    unit = LEAST if name in ("neither", "zero") else 1.0
    raw = starts()[name] / unit
    own, plain = few_steps(steps)
    found = all_derivatives(lambda free: own(free * unit), raw)
    expected = all_derivatives(lambda free: plain(free * unit), raw)
    if name == "zero":
        # Twice backward a norm is not a number there, for torch.
        expected[2] = expected[3]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["Frobenius", "one row"])
def test_second_derivatives_of_the_iteration_against_finite_differences(name: str) -> None:
    raw = starts()[name].requires_grad_()
    assert torch.autograd.gradcheck(Bjorck(3).matrix, raw)
    assert torch.autograd.gradgradcheck(Bjorck(3).matrix, raw)


def test_branches_side_by_side() -> None:
    """Every matrix of a batch has its own, also where the batch is that of vmap."""
    batch = torch.cat([starts()[name] for name in ("Frobenius", "one row", "rows alike", "both")])
    weights = gaussian(3, 3, 5)

    def value(raw: Tensor) -> Tensor:
        return (Bjorck(2).matrix(raw) * weights).sin().sum()

    alone = torch.cat([torch.func.grad(value)(raw[None]) for raw in batch])
    torch.testing.assert_close(torch.func.grad(value)(batch), alone)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(value))(batch[:, None])[:, 0], alone)
    forward = torch.func.vmap(torch.func.jacfwd(torch.func.grad(value)))(batch[:, None])
    torch.testing.assert_close(forward, torch.func.vmap(torch.func.jacrev(torch.func.grad(value)))(batch[:, None]))


@pytest.mark.parametrize("shape", [(16, 16), (20, 16)], ids=str)
def test_gradients_at_orthogonal_matrices_keep_their_digits(shape: tuple[int, int]) -> None:
    """There the first step has to make 1 small, by a difference."""
    raw = orthogonal(*shape).to(torch.float32)
    found: list[Tensor] = []
    for dtype in (torch.float32, torch.float64):
        free = raw.to(dtype).requires_grad_()
        found += torch.autograd.grad((Bjorck().matrix(free) * gaussian(*shape, 1).to(dtype)).sum(), free)
    error = torch.linalg.vector_norm(found[0].double() - found[1])
    # 2e-5 seen; 3e-4 where the difference is taken after the product.
    assert float(error) <= 6e-5 * float(torch.linalg.vector_norm(found[1]))


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 30.0, 1e150])
def test_derivatives_of_cap_are_those_of_its_operations(scale: float) -> None:
    raw = gaussian(4, 3)
    over = scale * float(torch.linalg.vector_norm(raw)) > 4.0

    def expected(x: Tensor) -> Tensor:
        return 4.0 * x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) if over else scale * x

    found = all_derivatives(lambda x: cap(scale * x, 4.0), raw)
    for one, other in zip(found, all_derivatives(expected, raw), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [0, 1e-30, 1.0, 1e30])
def test_the_last_step_counts_its_own_rounding(size: float) -> None:
    """Singular values of exactly one, where nothing is to spare, and the two ends of the range."""
    for values in (torch.ones(24, dtype=torch.float64), torch.linspace(0, math.sqrt(3), 24, dtype=torch.float64)):
        left, _, right = torch.linalg.svd(gaussian(40, 24), full_matrices=False)
        near = (left * values) @ right * size
        for dtype in (torch.float32, torch.float64):
            found = close_isometry(near.to(dtype), dtype, may_fall_short=True)
            assert float(torch.linalg.svdvals(found.to(torch.float64)).max()) <= 1


@pytest.mark.parametrize(
    ("method", "forward", "backward"), [(Bjorck(), 32, 48), (Cayley(), 26, 25), (Exponential(), 75, 89)], ids=str
)
def test_launches(method: MatrixMethod, forward: int, backward: int) -> None:
    """Small layers take as long as their operations need to be launched."""
    raw = gaussian(4, 4).to(torch.float32).requires_grad_()
    with Launches() as first:
        weight = method.matrix(raw)
    out = torch.ones_like(weight)
    with Launches() as second:
        torch.autograd.grad(weight, raw, out)
    assert (first.count, second.count) == (forward, backward)
