"""Combinators: their constants by dense Jacobians, and branches for which the constant is attained."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn import (
    Absolute,
    Branch,
    Concat,
    ConvexResidual,
    ConvexSum,
    MaxMin,
    Normalize,
    Parallel,
    Scale,
    ScaledResidual,
    ScaledSum,
)
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.layers.linear import Linear
from support.jacobians import norm_at, steepest

# A dense decomposition in float64 is off by some units of 2^-53.
ROUNDING = 1 + 1e-13


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def branch() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(Linear(4, 4), MaxMin(), Linear(4, 4))


MODULES: dict[str, Callable[[], Stated]] = {
    "convex residual": lambda: ConvexResidual(branch()),
    "convex residual of a large branch": lambda: ConvexResidual(nn.Sequential(Scale(5.0), branch()), start=0.9),
    "scaled residual": lambda: ScaledResidual(branch()),
    "scaled residual of a large branch": lambda: ScaledResidual(nn.Sequential(branch(), Scale(-3.0))),
    "branch": lambda: Branch(branch(), Scale(2.0), nn.Tanh()),
    "parallel": lambda: Parallel(Scale(2.0), Absolute(), sizes=(1, 3)),
    "scale": lambda: Scale(-1.7),
    "normalize": lambda: Normalize((0.5, 0.4, 0.3, 0.2), (0.2, 0.25, 0.3, 2.0)),
}
# Whose constant the given parts attain at every point.
SHARP = {"parallel", "scale", "normalize"}


@pytest.mark.parametrize("name", MODULES)
def test_no_jacobian_exceeds_the_declared_constant(name: str):
    module = MODULES[name]().double()
    declared = float(module.declared_lipschitz((4,)).value)
    assert declared == pytest.approx(module.gain, rel=1e-12)
    found = steepest(module, (1, 4))
    assert found <= declared * ROUNDING
    if name in SHARP:
        # Scales are rounded by 2^-23.
        assert found >= declared * (1 - 1e-6)


@pytest.mark.parametrize(
    ("module", "constant"),
    [
        (Branch(nn.Identity(), Scale(2.0), Scale(-3.0)), math.sqrt(14)),
        (Parallel(Scale(2.0), nn.Identity(), sizes=(2, 2)), 2.0),
        (ScaledResidual(nn.Identity()), 1.0),
        (ConvexResidual(nn.Identity()), 1.0),
    ],
    ids=str,
)
def test_constants_are_attained_by_parts_that_agree(module: nn.Module, constant: float):
    # Up to the safe rounding of scales, 2^-22.
    assert norm_at(module.double(), points(1, 4)) == pytest.approx(constant, rel=1e-6)
    assert module.gain == pytest.approx(constant, rel=1e-6)


@pytest.mark.parametrize("raw", [-1e4, -2.0, 0.3, 4.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convex_sums_are_convex_whatever_is_stored(raw: float, dtype: torch.dtype):
    module = ConvexSum((1.0, 1.0, 1.0)).to(dtype)
    module.logits.data.fill_(raw)
    # The stored shares, read in float64: y + s (x - y) has weights 1 - s and s exactly.
    shares = torch.sigmoid(module.logits).double()
    assert bool(((shares >= 0) & (shares <= 1)).all())
    assert math.fsum(module.weights) == pytest.approx(1, rel=1e-12)
    one = torch.ones(5, dtype=dtype)
    assert torch.equal(module(one, one, one), one)


def test_convex_sums_start_where_they_are_told():
    module = ConvexSum((0.2, 0.3, 0.5)).double()
    parts = [points(3, seed=seed) for seed in range(3)]
    expected = 0.2 * parts[0] + 0.3 * parts[1] + 0.5 * parts[2]
    # The logits were made in float32.
    assert torch.allclose(module(*parts), expected, atol=1e-6)
    assert module.weights == pytest.approx((0.2, 0.3, 0.5), abs=1e-6)
    assert torch.autograd.gradcheck(
        lambda a: torch.func.functional_call(module, {"logits": a}, tuple(parts)), module.logits
    )


def test_weights_for_each_channel_would_not_be_convex():
    """(x_1 in channel 1, x_2 in channel 2) with x_1 = (u, 0), x_2 = (0, u): u counts twice."""
    u = torch.tensor(1.0)
    weights = torch.tensor([1.0, 0.0])
    first, second = torch.stack((u, 0 * u)), torch.stack((0 * u, u))
    assert float((weights * first + (1 - weights) * second).norm()) == pytest.approx(math.sqrt(2))


def test_concatenations_and_sums_of_functions_of_one_input():
    x = points(1, 4)
    one, two = branch().double(), Absolute()

    class Both(nn.Module):
        def __init__(self, join: nn.Module) -> None:
            super().__init__()
            self.join = join.double()

        def forward(self, x: Tensor) -> Tensor:
            return self.join(one(x), two(x))

    for join in (Concat(), ConvexSum(), ScaledSum()):
        assert norm_at(Both(join), x) <= ROUNDING
    assert norm_at(Both(Concat()), x) == pytest.approx(1, rel=1e-6)  # two isometries


def test_normalisation_is_what_it_says_in_every_number_type():
    module = Normalize((0.5, 0.4), (0.25, 0.3))
    x = points(3, 2, 5)
    expected = (x - torch.tensor([0.5, 0.4]).double()[:, None]) / torch.tensor([0.25, 0.3]).double()[:, None]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = module.to(dtype)(x.to(dtype))
        assert found.dtype == dtype
        # Three roundings, and the constants of the reference were float32's.
        assert torch.allclose(found.double(), expected, rtol=0, atol=64 * torch.finfo(dtype).eps + 1e-6)
        eye = torch.eye(2, dtype=dtype) - 0
        factors = (module(eye) - module(0 * eye)).double().norm(dim=0)
        # The difference of two rounded numbers of size four.
        assert float(factors.max()) <= module.gain + 8 * torch.finfo(dtype).eps
    assert module.gain == pytest.approx(4)


def test_a_cast_factor_is_below_the_declared_one():
    for std in (0.3, 0.7, 0.2023, 0.1994, 0.2010):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            stored = float(Normalize((0.0,), (std,))(torch.ones(1, dtype=dtype)))
            assert stored <= 1 / std


@pytest.mark.parametrize(
    "build",
    [lambda: Branch(nn.Linear(2, 2)), lambda: ConvexResidual(nn.BatchNorm1d(2)), lambda: ScaledResidual(nn.GLU())],
)
def test_parts_without_a_constant_are_refused(build: Callable[[], nn.Module]):
    with pytest.raises(UnsupportedError, match="not known"):
        build()


@pytest.mark.parametrize(
    "build",
    [
        Branch,
        lambda: Parallel(Absolute(), sizes=(1, 2)),
        lambda: ConvexSum((1.0,)),
        lambda: ConvexSum((1.0, -1.0)),
        lambda: ConvexSum()(torch.ones(1)),
        ScaledSum(),
        lambda: Scale(math.inf),
        lambda: Normalize((0.5,), (0.0,)),
        lambda: Normalize((0.5,), (1.0, 1.0)),
    ],
)
def test_arguments_outside_their_domain_are_refused(build: Callable[[], object]):
    with pytest.raises(ArgumentError):
        build()


def test_parts_of_another_size_are_refused():
    with pytest.raises(ShapeError, match="splits 4 channels"):
        Parallel(Absolute(), Absolute(), sizes=(1, 3))(torch.ones(1, 5))


@pytest.mark.parametrize("name", MODULES)
def test_derivatives_of_both_orders_and_single_samples(name: str):
    module = MODULES[name]().double()
    x = points(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x)
    each = torch.func.vmap(lambda one: module(one[None])[0])(x)
    assert torch.allclose(each, module(x), atol=1e-14)
