"""Activations: their constants by dense Jacobians, permutations, ties, derivatives of both orders, number types."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn import (
    GELU,
    OPLU,
    Absolute,
    ChannelPairing,
    CLipSwish,
    FullSort,
    GroupSort,
    HouseholderActivation,
    LipSwish,
    MaxMin,
    Mish,
    PReLU,
    Rescaled,
    SiLU,
    Softplus,
    Spline,
    TriangularStairs,
)
from lipkit.nn.core.known_constants import Stated
from support.jacobians import jacobian, steepest
from support.unchecked import unchecked

SORTING: dict[str, Callable[[], Stated]] = {
    "groups of 2": lambda: GroupSort(2),
    "groups of 3": lambda: GroupSort(3),
    "neighbours": MaxMin,
    "halves": lambda: MaxMin(ChannelPairing.HALVES),
    "OPLU": OPLU,
    "full": FullSort,
}
SMOOTH: dict[str, Callable[[], Stated]] = {
    "LipSwish": LipSwish,
    "CLipSwish": CLipSwish,
    "GELU": GELU,
    "GELU tanh": lambda: GELU(tanh=True),
    "SiLU": SiLU,
    "Mish": Mish,
    "Softplus": lambda: Softplus(2.0),
}
KINKED: dict[str, Callable[[], Stated]] = {
    "absolute": Absolute,
    "Householder": lambda: scattered(HouseholderActivation(6)),
    "Householder 2": lambda: scattered(HouseholderActivation(6, order=2)),
    "PReLU": lambda: scattered(PReLU()),
    "PReLU by channel": lambda: scattered(PReLU(6)),
    "spline": lambda: scattered(Spline(6)),
    "stairs": lambda: TriangularStairs(0.3, 0.7),
    "SELU": lambda: Rescaled(nn.SELU()),
}
ALL = SORTING | SMOOTH | KINKED


def scattered(module: Stated) -> Stated:
    """The module with every parameter far from its start."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.copy_(3 * torch.randn(parameter.shape, generator=generator))
    return module


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ALL)
def test_no_jacobian_exceeds_the_declared_constant(name: str):
    module = ALL[name]().double()
    declared = module.declared_lipschitz((6, 2))
    assert declared.kind in (Kind.EXACT, Kind.UPPER)
    # A dense decomposition in float64 is off by some units of 2^-53.
    assert steepest(module, (1, 6, 2)) <= float(declared.value) * (1 + 1e-14)
    assert float(declared.value) == pytest.approx(module.gain, rel=1e-12)
    assert module.gain <= 1 + 2**-52


@pytest.mark.parametrize("name", ["LipSwish", "GELU", "GELU tanh", "SiLU", "Mish", "stairs", "SELU", "PReLU", "spline"])
def test_declared_constants_are_attained_by_pointwise_activations(name: str):
    """A constant far above the largest slope would be true and useless."""
    module = ALL[name]().double()
    x = torch.linspace(-8, 8, 12 * 4001, dtype=torch.float64).reshape(-1, 6).requires_grad_()
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    # The grid is 4e-4 fine and slopes are smooth at their maximum, except SELU's, which is steepest just left of zero;
    # a scattered spline need not have a slope of 1.
    assert float(slope.abs().max()) >= module.gain * {"spline": 0.9, "SELU": 1 - 1e-3}.get(name, 1 - 1e-5)


def test_concatenated_swish_attains_its_constant_and_keeps_gradients():
    module = CLipSwish().double()
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64).reshape(-1, 1).requires_grad_()
    slope = [torch.autograd.grad(module(x)[:, i].sum(), x)[0] for i in (0, 1)]
    both = torch.hypot(*slope)
    assert float(both.max()) == pytest.approx(0.99996518, abs=1e-6)  # 1.003965040 / 1.004
    assert float(both.min()) >= 0.64


@pytest.mark.parametrize("name", SORTING)
@pytest.mark.parametrize("values", ["random", "tied", "some tied"])
def test_sorting_permutes_entries_also_at_ties(name: str, values: str):
    x = points(1, 6, 2)
    if values == "tied":
        x = torch.zeros_like(x)
    if values == "some tied":
        x = x.round()
    found = jacobian(SORTING[name](), x)
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    assert bool((found.sum(0) == 1).all())
    assert bool((found.sum(1) == 1).all())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, in its forward mode
@pytest.mark.parametrize("values", ["random", "tied"])
def test_forward_derivatives_agree_with_backward_ones(values: str):
    x = points(4) if values == "random" else torch.ones(4).double()
    module, direction = MaxMin(axis=0), points(4, seed=1)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(module(forward_ad.make_dual(x, direction))).tangent
    assert tangent is not None
    assert torch.equal(tangent, jacobian(module, x) @ direction)


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([0, 1, -1, -2]))
def test_groups_are_sorted_on_every_axis(groups: int, size: int, axis: int):
    x = points(groups * size, groups * size)
    found = GroupSort(size, axis)(x)
    expected = x.movedim(axis, -1).reshape(-1, groups, size).sort(-1).values.reshape(x.shape).movedim(-1, axis)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", SORTING)
def test_values_do_not_depend_on_whether_gradients_are_kept(name: str):
    x = points(5, 6, 2).round()
    with torch.no_grad():
        plain = SORTING[name]()(x)
    assert torch.equal(plain, SORTING[name]()(x))


def test_pairs_are_ordered_as_named():
    x = torch.tensor([[4.0, 1.0, 2.0, 3.0]])
    assert MaxMin()(x).tolist() == [[1.0, 4.0, 2.0, 3.0]]
    assert OPLU()(x).tolist() == [[4.0, 1.0, 3.0, 2.0]]
    assert MaxMin(ChannelPairing.HALVES)(x).tolist() == [[2.0, 1.0, 4.0, 3.0]]
    assert FullSort()(x).tolist() == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize(
    ("module", "shape"),
    [(GroupSort(3), (1, 4)), (MaxMin(), (2, 3)), (OPLU(), (2, 5)), (MaxMin(), (4,)), (Spline(3), (1, 4))],
)
def test_channels_that_do_not_fit_are_refused(module: nn.Module, shape: tuple[int, ...]):
    with pytest.raises(ShapeError, match="shape"):
        module(torch.zeros(shape))


@pytest.mark.parametrize(
    "build",
    [
        lambda: GroupSort(0),
        lambda: HouseholderActivation(3),
        lambda: HouseholderActivation(4, order=3),
        lambda: Spline(2, pieces=0),
        lambda: TriangularStairs(1.5),
    ],
)
def test_arguments_outside_their_domain_are_refused(build: Callable[[], nn.Module]):
    with pytest.raises(ArgumentError, match="got"):
        build()


@pytest.mark.parametrize("order", [1, 2])
def test_householder_is_an_isometry_and_continuous(order: int):
    module = scattered(HouseholderActivation(2, order)).double()
    x = points(64, 2)
    for one in x:
        singular = torch.linalg.svdvals(jacobian(module, one[None]))
        # The factor of the reflection is rounded down by one epsilon of float64 a fold.
        assert float((singular - 1).abs().max()) <= 1e-14
    angles = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    around = module(torch.stack((angles.cos(), angles.sin()), 1)).detach()
    # Neighbours on the circle are 3.2e-4 apart; a jump would be of order one.
    assert float((around[1:] - around[:-1]).norm(dim=1).max()) <= 3.2e-4


def test_householder_starts_as_max_and_min():
    x = points(5, 4)
    high, low = torch.maximum(x[:, :2], x[:, 2:]), torch.minimum(x[:, :2], x[:, 2:])
    # cos(pi/4) squared twice is 1 up to 2^-52.
    assert torch.allclose(HouseholderActivation(4).double()(x), torch.cat((high, low), 1), atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [1, 2])
def test_householder_as_stored_is_no_expansion(dtype: torch.dtype, order: int):
    """The reflections are read off the layer in few digits, and measured in float64."""
    angles = torch.linspace(0, 7, 200).to(dtype)
    v = torch.stack(((angles.double() / 2).sin().to(dtype), -(angles.double() / 2).cos().to(dtype)), 1).double()
    square = v.square().sum(1)
    c = (2 * (1 - torch.finfo(dtype).eps) / square).to(dtype).double()
    reflections = torch.eye(2).double() - c[:, None, None] * v[:, :, None] * v[:, None, :]
    singular = torch.linalg.svdvals(reflections)
    assert float(singular.max()) <= 1 + 1e-15
    # An isometry up to two epsilons.
    assert float(singular.min()) >= 1 - 4 * torch.finfo(dtype).eps
    module = HouseholderActivation(400, order).to(dtype)
    module.angles.data.copy_(angles.repeat(order, 1))
    x = torch.randn(8, 400, generator=torch.Generator().manual_seed(0)).to(dtype)
    # The layer computes what is measured above: same direction, up to a few roundings an entry.
    wide = HouseholderActivation(400, order).double()
    wide.angles.data.copy_(angles.double().repeat(order, 1))
    assert torch.allclose(module(x).double(), wide(x.double()), atol=32 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ALL)
def test_derivatives_of_both_orders(name: str):
    module = ALL[name]().double()
    # Away from kinks and ties: entries are at least 0.05 apart from each other, from zero and from knots.
    x = torch.tensor([[0.13, -0.74, 1.21, -1.83, 0.66, -0.31], [2.71, 0.37, -0.12, 0.83, -2.37, 1.73]]).double()
    x.requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["Householder", "Householder 2", "PReLU by channel", "spline", "LipSwish", "CLipSwish"]
)
def test_parameters_get_their_gradient(name: str):
    module = ALL[name]().double()
    names, values = zip(*module.named_parameters(), strict=True)
    x = points(3, 6)

    def call(*parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, tuple(v.detach().requires_grad_() for v in values))


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_single_samples_by_vmap(name: str):
    module = ALL[name]().double()
    x = points(4, 6)

    def value(one: Tensor) -> Tensor:
        return module(one[None]).square().sum()

    each = torch.stack([torch.autograd.functional.jacobian(value, one) for one in x])
    # The same operations in another order.
    assert torch.allclose(torch.func.vmap(torch.func.grad(value))(x), each, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_number_types_are_kept(name: str, dtype: torch.dtype):
    module = ALL[name]().to(dtype)
    x = points(3, 6, 2).to(dtype).requires_grad_()
    found = module(x)
    assert found.dtype == dtype
    found.float().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bool(ALL[name]()(points(3, 6).bfloat16()).isfinite().all())


@pytest.mark.parametrize("name", ALL)
def test_channels_are_where_images_and_vectors_have_them(name: str):
    module = ALL[name]().double()
    image = points(2, 6, 3, 2)
    pixels = image.movedim(1, -1).reshape(-1, 6)
    expected = module(pixels).unflatten(0, (2, 3, 2)).movedim(-1, 1)
    assert torch.allclose(module(image), expected, atol=1e-14)


def test_pairings_by_name_are_refused() -> None:
    name: Any = "halves"
    with unchecked(), pytest.raises(ArgumentError, match=r"ChannelPairing.HALVES, got 'halves'"):
        MaxMin(name)
