"""Invertible blocks: round trips, the proven error against the true one, two-sided constants, implicit derivatives."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import DAG
from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, ShapeError, UnsupportedError
from lipkit.nn.residual.fixed_point import fixed_point
from support.layers.geometries import FILLS, filled


def perceptron(features: int = 4, hidden: int = 8) -> nn.Module:
    return nn.Sequential(
        lnn.Linear(features, hidden), lnn.LipSwish(), lnn.Linear(hidden, hidden), lnn.LipSwish(),
        lnn.Linear(hidden, features),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(lnn.Conv2d(2, 4, 3, padding=1), lnn.MaxMin(), lnn.Conv2d(4, 2, 3, padding=1))


BLOCKS: dict[str, tuple[Callable[[], lnn.InvertibleResidual | lnn.InvertibleSequential], tuple[int, ...]]] = {
    "dense": (lambda: lnn.InvertibleResidual(perceptron()), (4,)),
    "steep": (lambda: lnn.InvertibleResidual(perceptron(), 0.97), (4,)),
    "image": (lambda: lnn.InvertibleResidual(convolutions()), (2, 5, 5)),
    "small branch": (lambda: lnn.InvertibleResidual(nn.Sequential(perceptron(), lnn.Scale(0.2))), (4,)),
    "large branch": (lambda: lnn.InvertibleResidual(nn.Sequential(lnn.Scale(-7.0), perceptron()), 0.8), (4,)),
    "chain": (
        lambda: lnn.InvertibleSequential(*(lnn.InvertibleResidual(perceptron(), c) for c in (0.9, 0.5, 0.8))),
        (4,),
    ),
}
every_block = pytest.mark.parametrize("name", BLOCKS)


def trained(block: nn.Module, shape: tuple[int, ...]) -> None:
    """A few steps that make the branch as steep as it can be."""
    optimizer = torch.optim.Adam(block.parameters(), lr=0.05)
    for _ in range(10):
        x = torch.randn(8, *shape)
        optimizer.zero_grad()
        (-(block(x) - x).square().sum()).backward()
        optimizer.step()


@every_block
def test_round_trips_in_float32(name: str) -> None:
    torch.manual_seed(0)
    build, shape = BLOCKS[name]
    block = build()
    trained(block, shape)
    x = torch.randn(16, *shape)
    with torch.no_grad():
        found = block.inverse(block(x))
        again = block(block.inverse(x).point)
    # Half of the digits that were asked for; one evaluation rounds by about 1e-7, which 1/(1 - c) enlarges.
    assert float((found.point - x).abs().max()) < (1e-5 if name not in ("steep", "chain") else 5e-5)
    assert float((again - x).abs().max()) < 1e-5
    assert not found.point.requires_grad


@every_block
def test_the_error_is_at_most_what_is_proven(name: str) -> None:
    torch.manual_seed(1)
    build, shape = BLOCKS[name]
    block = build()
    trained(block, shape)
    block = block.double()
    x = 3 * torch.randn(8, *shape, dtype=torch.float64)
    for tolerance in (1e-1, 1e-4, 1e-9):
        with torch.no_grad():
            found = block.inverse(block(x), tolerance)
        missed = (found.point - x).flatten(1).norm(dim=1)
        # Numbers of size ten round by 1e-15, which is enlarged by at most 1/(1 - c)^3.
        assert bool((missed <= found.error + 1e-12).all())
        assert bool((found.error <= tolerance).all())
        assert found.steps >= 1


def test_the_error_bound_is_sharp_for_a_linear_branch() -> None:
    """g(x) = c x is the worst case of the theorem with the sign of a divergent direction: x <- y - c x alternates, so
    the distance is c/(1 + c) of a step; for g(x) = -c x it is c/(1 - c) of it."""
    for sign, share in ((-1.0, 1.0), (1.0, (1 - 0.9) / (1 + 0.9))):
        block = lnn.InvertibleResidual(lnn.Scale(sign), 0.9).double()
        x = torch.ones(1, 3, dtype=torch.float64)
        with torch.no_grad():
            found = block.inverse(block(x), 1e-3)
        missed = float((found.point - x).norm())
        # The factor of the block is smaller by 2^-22 than the constant it states, which 1/(1 - c) enlarges tenfold.
        assert missed / float(found.error) == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize("fill", sorted(FILLS))
@pytest.mark.parametrize("contraction", [0.3, 0.99])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=3)
def test_distances_stay_between_both_constants(fill: str, contraction: float, seed: int) -> None:
    torch.manual_seed(seed)
    linear = lnn.Linear(4, 4, method=lnn.Spectral())
    filled(linear, fill)
    block = lnn.InvertibleResidual(nn.Sequential(linear, nn.Tanh()), contraction)
    plain = lnn.condense(block).double()
    x, y = (torch.randn(16, 4, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        ratio = (plain(x) - plain(y)).norm(dim=1) / (x - y).norm(dim=1)
    assert block.gain <= 1 + contraction + 1e-12
    assert block.least_gain >= 1 - contraction - 1e-12
    assert block.least_gain - 1e-12 <= float(ratio.min()) <= float(ratio.max()) <= block.gain + 1e-12
    jacobian = torch.func.jacrev(plain)(x[0]).detach()
    values = torch.linalg.svdvals(jacobian)
    assert block.least_gain - 1e-12 <= float(values[-1]) <= float(values[0]) <= block.gain + 1e-12


SMALL: dict[str, tuple[Callable[[], lnn.InvertibleResidual | lnn.InvertibleSequential], tuple[int, ...]]] = {
    "dense": (lambda: lnn.InvertibleResidual(perceptron(2, 3), 0.5), (2,)),
    "image": (lambda: lnn.InvertibleResidual(nn.Sequential(lnn.Conv2d(1, 1, 3, padding=1), nn.Tanh()), 0.5), (1, 2, 2)),
    "chain": (
        lambda: lnn.InvertibleSequential(*(lnn.InvertibleResidual(perceptron(2, 3), c) for c in (0.5, 0.3))),
        (2,),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_derivatives_of_the_inverse(name: str) -> None:
    """In y and in the weights against finite differences; in y also against the inverse of the Jacobian."""
    torch.manual_seed(2)
    build, shape = SMALL[name]
    block = build().double()
    with torch.no_grad():
        # First weights have zeros, where methods have kinks.
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    y = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    x = block.inverse(y).point
    direction = torch.randn_like(x)
    names, values = zip(*block.named_parameters(), strict=True)
    found = torch.autograd.grad((x * direction).sum(), [y, *values])
    moves = [torch.randn_like(value) for value in (y, *values)]

    def moved(by: float) -> Tensor:
        parameters = {one: value + by * move for one, value, move in zip(names, values, moves[1:], strict=True)}
        with torch.no_grad():
            return torch.func.functional_call(_Inverse(block), _named(parameters), (y + by * moves[0],))

    # Central differences: an error of order h^2, and rounding of 1e-14 / h.
    quotient = ((moved(1e-5) - moved(-1e-5)) * direction).sum() / 2e-5
    slope = sum((g * move).sum() for g, move in zip(found, moves, strict=True))
    assert isinstance(slope, Tensor)
    assert float(slope) == pytest.approx(float(quotient), rel=1e-5, abs=1e-8)
    size = math.prod(shape)
    rows = [torch.autograd.grad(block.inverse(y).point[0].flatten()[i], y)[0][0].flatten() for i in range(size)]
    forward = torch.func.jacrev(lambda z: block(z[None])[0])(x[0].detach()).detach().reshape(size, size)
    torch.testing.assert_close(torch.stack(rows) @ forward, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-10)


class _Inverse(nn.Module):
    def __init__(self, block: lnn.InvertibleResidual | lnn.InvertibleSequential) -> None:
        super().__init__()
        self.block = block

    def forward(self, y: Tensor) -> Tensor:
        return self.block.inverse(y).point


def _named(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"block.{name}": value.detach() for name, value in parameters.items()}


def test_second_derivatives_are_refused() -> None:
    block = lnn.InvertibleResidual(perceptron())
    y = torch.randn(2, 4, requires_grad=True)
    point = block.inverse(y).point
    with pytest.raises(UnsupportedError, match="first derivatives only"):
        torch.autograd.grad(point.sum(), y, create_graph=True)


def test_gradients_that_overflowed_are_handed_on() -> None:
    """Scaled losses overflow on purpose: the scaler looks for infinite gradients and leaves the step out."""
    block = lnn.InvertibleResidual(perceptron(), 0.5)
    y = torch.randn(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(block.inverse(y).point.sum() * math.inf, y)
    assert not bool(torch.isfinite(gradient).any())


def test_training_through_the_inverse_reduces_a_loss() -> None:
    torch.manual_seed(3)
    block = lnn.InvertibleResidual(perceptron(), 0.5)
    optimizer = torch.optim.Adam(block.parameters(), lr=0.05)
    y = torch.randn(32, 4)
    target = 1.3 * y
    losses: list[float] = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = (block.inverse(y).point - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@every_block
def test_captures_have_the_declared_constant(name: str) -> None:
    build, shape = BLOCKS[name]
    block = build()
    found = lipkit.lipschitz(block, torch.randn(1, *shape), DAG())
    assert float(found.value) == pytest.approx(block.gain, rel=1e-12)


def test_the_contraction_is_that_of_the_branch_where_it_is_small_enough() -> None:
    block = lnn.InvertibleResidual(nn.Sequential(lnn.Linear(3, 3), lnn.Scale(0.25)))
    assert block.factor == 1
    # Scale states its number with a slack of 2^-23.
    assert block.contraction == pytest.approx(0.25, rel=1e-6)
    assert lnn.InvertibleResidual(lnn.Scale(0.0)).inverse(torch.ones(1, 2)).steps == 1


@pytest.mark.parametrize("contraction", [1.0, 1.5, 0.0, -0.5, float("nan")])
def test_other_contractions_are_refused(contraction: float) -> None:
    with pytest.raises(ArgumentError, match=r"must lie in \(0, 1\).*ScaledResidual"):
        lnn.InvertibleResidual(perceptron(), contraction)


def test_a_contraction_of_one_need_not_be_invertible() -> None:
    """The reason: x + g(x) with g(x) = -x, of constant 1, maps everything to zero."""
    block = lnn.InvertibleResidual(nn.Identity(), 0.9)
    block.branch, block.factor = lnn.Scale(-1.0), 1.0
    assert float(block(torch.randn(3, 2)).abs().max()) == 0
    with pytest.raises(UnsupportedError, match="build the block anew"):
        block.inverse(torch.ones(1, 2))
    with pytest.raises(UnsupportedError, match="build the block anew"):
        block.log_determinant(torch.ones(1, 2))


def test_condensed_blocks_are_not_inverted() -> None:
    plain = lnn.condense(lnn.InvertibleResidual(perceptron()))
    assert isinstance(plain, lnn.InvertibleResidual)
    with pytest.raises(UnsupportedError, match="condensed or exchanged"):
        plain.inverse(torch.ones(1, 4))


def test_bad_input() -> None:
    block = lnn.InvertibleResidual(perceptron())
    with pytest.raises(ShapeError, match=r"x\[None\]"):
        block.inverse(torch.ones(4))
    with pytest.raises(NonFiniteError, match="NaN"):
        block.inverse(torch.full((1, 4), math.nan))
    with pytest.raises(NotProvenError, match="float64"):
        block.inverse(100 * torch.randn(4, 4), tolerance=1e-12)
    for tolerance in (0.0, -1.0, math.inf):
        with pytest.raises(ArgumentError, match="tolerance"):
            block.inverse(torch.ones(1, 4), tolerance)
    with pytest.raises(ShapeError, match="repeating"):
        lnn.InvertibleResidual(lnn.Linear(4, 1))(torch.ones(2, 4))
    with pytest.raises(UnsupportedError, match="not known"):
        lnn.InvertibleResidual(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="constant below 1"):
        fixed_point(lambda x: x, torch.ones(1, 2), 1.0, None)
    with pytest.raises(ArgumentError, match="got none"):
        lnn.InvertibleSequential()
