"""One suite for every field: its constant, sign, distances, rounding errors and gradients."""

import copy
import inspect
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import sdf
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.sdf._base import constant_of
from support.fields import CASES, DIGITS, EXAMPLES, Example, numbers
from support.unchecked import unchecked

every_field = pytest.mark.parametrize(
    "example", [e for _, e in CASES], ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)]
)


def having(what: str) -> Any:
    some = [(name, e) for name, e in CASES if getattr(e, what)]
    return pytest.mark.parametrize("example", [e for _, e in some], ids=[f"{n}-{i}" for i, (n, _) in enumerate(some)])


# Coordinates where squares underflow, where numbers are subnormal, and far out.
SCALES = (1.0, 1.0, 1e-3, 1e-160, 5e-324, 1e30, 1e100)
CORNERS = (0.0, 1.0, -1.0, 0.3, 0.9, 1.1, -0.7)


def points(seed: int, count: int, dim: int) -> Tensor:
    """Points of every size, some with coordinates of several sizes, some at corners."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.tensor(SCALES, dtype=torch.float64)[torch.randint(len(SCALES), (count, dim), generator=random)]
    same = torch.rand(count, 1, generator=random) < 0.7
    scale = torch.where(same, scale[:, :1], scale)
    found = 2 * torch.randn(count, dim, generator=random, dtype=torch.float64) * scale
    corner = torch.tensor(CORNERS, dtype=torch.float64)[torch.randint(len(CORNERS), (count, dim), generator=random)]
    return torch.where(torch.rand(count, dim, generator=random) < 0.1, corner, found)


def test_every_exported_field_is_registered() -> None:
    public = {value for value in vars(sdf).values() if inspect.isclass(value) and issubclass(value, sdf.Field)}
    assert {one for one in public if not inspect.isabstract(one)} == EXAMPLES.keys()


def test_the_key_of_an_example_is_its_class() -> None:
    assert all(type(example.field) is kind for kind, some in EXAMPLES.items() for example in some)


@every_field
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_values_differ_by_at_most_the_constant(example: Example, seed: int) -> None:
    x, other = points(seed, 60, example.field.dim), points(seed + 1, 60, example.field.dim)
    constant, a = constant_of(example.field), example.field.measure(x)
    for y in (other, x + other * 1e-6):
        b = example.field.measure(y)
        # In units of the largest coordinate, so that no square underflows; 1e-13 is more than these lines round.
        unit = (x - y).abs().amax(1).clamp(min=1e-300)
        away = unit * ((x - y) / unit[:, None]).norm(dim=1)
        assert bool(((a.value - b.value).abs() <= constant * away * (1 + 1e-13) + a.error + b.error).all())


@having("reference")
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_errors_enclose_sixty_digits(example: Example, seed: int) -> None:
    assert example.reference is not None
    x = points(seed, 12, example.field.dim)
    found = example.field.measure(x)
    with mpmath.workdps(DIGITS):
        for row, value, error in zip(x, found.value, found.error, strict=True):
            truth = example.reference(numbers(row))
            # Coordinates of 1e100 leave an error of 1e40 in sixty digits, and float64 one of 1e84.
            assert abs(mpmath.mpf(float(value)) - truth) <= mpmath.mpf(float(error)) * (1 + mpmath.mpf(10) ** -20), (
                row,
                truth,
            )


@every_field
def test_errors_are_small(example: Example) -> None:
    # An error that is always infinite encloses everything. A thousand roundings of numbers below 20 are 2e-12.
    x = 2 * torch.randn(50, example.field.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(example.field.measure(x).error.max()) < 1e-10


# Points of the grid along an axis, for each dimension.
STEPS = {1: 4001, 2: 241, 3: 41}


@having("inside")
def test_no_value_exceeds_the_distance_to_the_other_side(example: Example) -> None:
    assert example.inside is not None
    dim = example.field.dim
    x = 2.5 * (2 * torch.rand(300, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1)
    axis = torch.linspace(-3, 3, STEPS[dim], dtype=torch.float64)
    y = torch.cartesian_prod(*[axis] * dim).view(-1, dim)
    here, there = example.inside(x), example.inside(y)
    found = example.field.measure(x)
    distance = torch.where(here[:, None] != there, torch.cdist(x, y), torch.inf).amin(1)
    # cdist multiplies matrices, which costs half the digits at most.
    assert bool((found.value.abs() - found.error <= constant_of(example.field) * distance + 1e-7).all())
    # On the surface itself the sign is not known.
    clear = found.value.abs() > found.error
    assert bool(((found.value > 0) == here)[clear].all())
    assert 0 < int(here.sum()) < len(x)
    if example.exact:
        # The other side has a point of the grid within a diagonal of a cell, twice that at corners.
        assert bool((found.value.abs() >= distance - 2 * 6 / (STEPS[dim] - 1) * dim**0.5).all())


@every_field
def test_gradients_are_differences(example: Example) -> None:
    field = example.field
    random = torch.Generator().manual_seed(2)
    x = 2 * torch.randn(200, field.dim, generator=random, dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.randn(200, field.dim, generator=random, dtype=torch.float64))
    slope = (field.gradient(x) * direction).sum(1)
    # A kink within a step makes differences of two steps disagree.
    fine, coarse = ((field(x + h * direction) - field(x - h * direction)) / (2 * h) for h in (1e-5, 1e-4))
    smooth = (fine - coarse).abs() < 1e-5
    assert float(smooth.double().mean()) > 0.9
    # Third derivatives below 1e4 give 1e-6, the roundings of 1e-14 / 1e-5 less.
    assert bool(((slope - fine).abs() < 1e-5)[smooth].all())
    assert float(field.gradient(x).norm(dim=1).max()) <= constant_of(field) * (1 + 1e-9)


@every_field
def test_values_are_those_that_are_measured(example: Example) -> None:
    field = example.field
    x = 2 * torch.randn(40, field.dim, generator=torch.Generator().manual_seed(3))
    found = field.measure(x)
    assert found.value.dtype == found.error.dtype == torch.float64
    leaf = x.clone().requires_grad_()
    value = field(leaf)
    assert value.requires_grad
    alone = torch.cat([field(row[None]) for row in x])
    for other in (field(x), value.detach(), field.measure(x.double()).value, alone, copy.deepcopy(field)(x)):
        assert bool(((other - found.value).abs() <= 2 * found.error).all())
    assert field(x[:0]).shape == field.measure(x[:0]).value.shape == (0,)
    assert field.gradient(x[:0]).shape == (0, field.dim)


@every_field
def test_bad_points_are_refused(example: Example) -> None:
    field = example.field
    good = torch.zeros(2, field.dim)
    bad: list[tuple[Any, type[Exception]]] = [
        (torch.zeros(2, field.dim + 1), ShapeError),
        (good[0], ShapeError),
        (good + torch.nan, NonFiniteError),
        (good + torch.inf, NonFiniteError),
        (good.long(), ArgumentError),
        ([[0.0] * field.dim], ArgumentError),
    ]
    with unchecked():
        for points_, error in bad:
            for call in (field, field.measure, field.gradient):
                with pytest.raises(error):
                    call(points_)


@every_field
def test_points_too_far_out_have_a_value_or_an_error(example: Example) -> None:
    x = torch.full((3, example.field.dim), 1e200, dtype=torch.float64)
    try:
        found = example.field.measure(x)
    except NonFiniteError:
        return
    assert bool((torch.isfinite(found.value) & torch.isfinite(found.error)).all())


@every_field
def test_the_constant_certifies(example: Example) -> None:
    assert example.field.bound.kind.certifies
    assert constant_of(example.field) == float(example.field.bound.value)
    assert example.field.dim >= 1
