"""The base of fields: what a subclass gets, and which constants it may state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, final

import pytest
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit import sdf
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, KindError, NonFiniteError
from lipkit.regions import Ball
from lipkit.sdf._base import constant_of
from support.unchecked import unchecked


@final
class Wave(sdf.Field):
    """sin(2 x) in one dimension, with a bound that the test chooses, and an error of half."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    @property
    def dim(self) -> int:
        return 1

    @property
    def bound(self) -> Bound:
        return self._bound

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        return (2 * points[:, 0]).sin() / (points[:, 0] - 7)

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        return values.abs() / 2


# Of types that no signature allows.
WRONG, HALF, PAIR = cast(Any, "wrong"), cast(Any, 2.5), cast(Any, torch.ones(2))
UPPER = Bound.from_value(2.0, Kind.UPPER, "stated")


def test_values_errors_and_gradients_follow() -> None:
    field, x = Wave(UPPER), torch.tensor([[0.5], [1.0]])
    value = torch.sin(2 * x[:, 0].double()) / (x[:, 0].double() - 7)
    assert torch.equal(field(x), value)
    found = field.measure(x)
    assert torch.equal(found.value, value)
    assert torch.equal(found.error, value.abs() / 2)
    at = x[:, 0].double()
    slope = 2 * torch.cos(2 * at) / (at - 7) - torch.sin(2 * at) / (at - 7) ** 2
    # Two formulas of a few roundings each.
    assert torch.allclose(field.gradient(x)[:, 0], slope, rtol=1e-12)


def test_gradients_need_no_grad_mode_and_leave_none_behind() -> None:
    field, x = Wave(UPPER), torch.tensor([[0.5]])
    with torch.no_grad():
        found = field.gradient(x)
    assert float(found.abs()) > 0
    assert not found.requires_grad
    assert x.grad is None
    assert not field.measure(x.requires_grad_()).value.requires_grad


def test_a_value_that_is_not_finite_is_not_measured() -> None:
    with pytest.raises(NonFiniteError, match="Wave"):
        Wave(UPPER).measure(torch.tensor([[0.0], [7.0]]))


def test_the_constant_is_rounded_up() -> None:
    assert 2.0 <= constant_of(Wave(UPPER)) <= 2.0 * (1 + 1e-14)
    assert constant_of(Wave(Bound.from_value(1.0, Kind.EXACT, "stated"))) == 1.0


@pytest.mark.parametrize("kind", [Kind.LOWER, Kind.ESTIMATE])
def test_a_number_that_proves_nothing_is_no_constant(kind: Kind) -> None:
    with pytest.raises(KindError):
        constant_of(Wave(Bound.from_value(1.0, kind, "stated")))


def test_a_constant_of_a_region_is_none_of_a_field() -> None:
    with pytest.raises(KindError, match="everywhere"):
        constant_of(Wave(replace(UPPER, region=Ball(torch.zeros(1), 1.0))))


def test_a_value_that_is_not_finite_is_not_given() -> None:
    with pytest.raises(NonFiniteError, match="Wave"):
        Wave(UPPER)(torch.tensor([[0.0], [7.0]]))
    with pytest.raises(NonFiniteError, match="Wave"):
        Wave(UPPER).gradient(torch.tensor([[0.0], [7.0]]))


@pytest.mark.parametrize(
    "field",
    [
        sdf.Sphere(torch.zeros(3), 1.0),
        sdf.Points(torch.zeros(1, 3)),
        sdf.Flats(torch.zeros(1, 3), torch.eye(3)[None, :1]),
        sdf.Box(torch.zeros(3), torch.ones(3)),
        sdf.HalfSpace(torch.ones(3), 0.0),
        sdf.Scaled(sdf.Points(torch.zeros(1, 3)), 1e-300),
        sdf.Moved(sdf.Points(torch.zeros(1, 3)), torch.full((3,), -1.7e308, dtype=torch.float64)),
    ],
    ids=lambda field: type(field).__name__,
)
def test_points_too_far_out_have_no_infinite_distance(field: sdf.Field) -> None:
    far = torch.full((1, 3), 1.7e308, dtype=torch.float64)
    for ask in (field, field.measure, field.gradient):
        with pytest.raises(NonFiniteError, match=f"{type(field).__name__} .* too far out"):
            ask(far)


def test_gradients_are_had_in_inference_mode() -> None:
    ball, at = sdf.Sphere(torch.zeros(2), 1.0), [[3.0, 4.0]]
    with torch.inference_mode():
        x = torch.tensor(at, dtype=torch.float64)
        # By hand: inwards along (3, 4)/5.
        assert ball.gradient(x).tolist() == [pytest.approx([-0.6, -0.8])]
        assert float(sdf.Walk(-1.0, rate=1e9)(ball, x).norm()) == pytest.approx(2.0)
        wall = sdf.HalfSpace(torch.tensor([3.0, 4.0]), 0.0)
        with pytest.raises(ArgumentError, match=r"made in torch\.inference_mode"):
            wall.gradient(x)


@pytest.mark.parametrize("count", [4, 40])
def test_points_and_flats_that_are_searched_are_copies(count: int) -> None:
    # In few dimensions by a tree, in many by products.
    cloud = torch.randn(30, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.randn(20, count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    near, flats = sdf.Points(cloud), sdf.Flats(cloud[:3], cloud[3:9].view(3, 2, count))
    before = near(x), flats(x)
    for part in (near.points, flats.origins, flats.bases, flats.given):
        part.mul_(10)
    assert torch.equal(near(x), before[0])
    assert torch.equal(flats(x), before[1])


def test_parts_of_a_motion_are_copies() -> None:
    ball, x = sdf.Sphere(torch.zeros(2), 1.0), torch.tensor([[3.0, 4.0]])
    turned = sdf.Moved(ball, torch.zeros(2), torch.eye(2, dtype=torch.float64))
    wide = sdf.Scaled(ball, torch.tensor([1.0, 2.0]))
    before = [float(one(x)) for one in (turned, wide)]
    assert turned.rotation is not None
    turned.rotation.mul_(10)
    turned.shift.add_(1)
    wide.factor.mul_(0.1)
    # The constants were those of the old numbers.
    assert [float(one(x)) for one in (turned, wide)] == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sdf.Sphere(torch.tensor([1 + 2j]), 1.0), r"center has real entries, got torch\.complex64"),
        (lambda: sdf.Sphere(torch.zeros(2), PAIR), r"radius is one real number, got .* shape \(2,\)"),
        (lambda: sdf.Shell(sdf.Sphere(torch.zeros(2), 1.0), WRONG), "t is one real number, got 'wrong'"),
        (lambda: sdf.Points(torch.zeros(3, 2), HALF), "neighbors is a whole number"),
        (lambda: sdf.Walk(0.0, steps=HALF), r"whole number, got steps=2\.5"),
        (lambda: sdf.MALA(0.1, HALF), r"whole number, got steps=2\.5"),
        (lambda: sdf.EnergyTraining(steps=HALF), r"whole number, got steps=2\.5"),
        (lambda: sdf.Mesh([["a"] * 3], [[0, 1, 2]]), "vertices is a tensor or an array of numbers"),
        (lambda: sdf.Flats.fit(1e200 * torch.eye(5, dtype=torch.float64), 2, 1), "too far out for their squares"),
        (lambda: sdf.epsilon_separation(torch.eye(3), torch.tensor([0, 1, torch.nan])), "Labels are whole numbers"),
    ],
)  # fmt: skip
def test_what_is_no_number_of_the_kind_is_refused(make: Callable[[], object], message: str) -> None:
    with unchecked(), pytest.raises((ArgumentError, NonFiniteError), match=message):
        make()


def test_fields_and_their_bounds_are_named_without_addresses() -> None:
    ball, box = sdf.Sphere(torch.zeros(2), 1.0), sdf.Box(torch.zeros(2), torch.ones(2))
    cut = sdf.Difference(ball, box)
    assert str(cut.bound) == "1 (upper bound, l2->l2, Difference(Sphere, Box))"
    assert repr(ball) == "Sphere(dim=2)"
    assert repr(sdf.Union(*[ball] * 4, box)) == "Union(Sphere, Sphere, Sphere, Sphere and 1 more)"
    points = sdf.Points(torch.eye(2, dtype=torch.float64))
    others = (
        box, points, sdf.Flats(torch.zeros(1, 2), torch.eye(2)[None, :1]), sdf.Function(lambda x: x[:, 0], 2, 1.0),
        sdf.HalfSpace(torch.ones(2), 0.0), sdf.Complement(cut), sdf.Offset(cut, 0.1), sdf.Shell(cut, 0.1),
        sdf.Moved(cut, torch.ones(2)), sdf.Scaled(cut, 2.0), sdf.SmoothUnion(ball, box, 0.1), Wave(UPPER),
    )  # fmt: skip
    for field in others:
        assert type(field).__name__ in repr(field)
        assert " at 0x" not in repr(field) + str(field.bound)
