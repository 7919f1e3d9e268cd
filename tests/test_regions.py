"""Regions: equality is that of the sets, impossible ones are refused, bounds are not carried where they are false."""

import dataclasses
import math

import pytest
import torch

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, RegionError, ShapeError
from lipkit.regions import Ball, Box, Everywhere, Region

ZERO = torch.zeros(2, 3)
BALL = Ball(torch.zeros(3), 0.5)


def made(value: float, kind: Kind = Kind.UPPER, on: Region | None = None) -> Bound:
    bound = Bound.from_value(value, kind, "given")
    return bound if on is None else dataclasses.replace(bound, region=on, lower=None)


def test_regions_are_equal_where_their_data_are():
    same = [
        (Everywhere(), Everywhere()),
        (Ball(ZERO, 1.0), Ball(ZERO.clone(), 1.0, p=2.0)),
        (Ball(ZERO, 1.0), Ball(ZERO.double(), 1)),
        (Box(ZERO, ZERO + 1), Box(ZERO.clone(), ZERO + 1)),
    ]
    for a, b in same:
        assert a == b
        assert hash(a) == hash(b)


def test_regions_differ_where_their_data_do():
    regions: list[Region] = [
        Everywhere(),
        Ball(ZERO, 1.0),
        Ball(ZERO, 2.0),
        Ball(ZERO, 1.0, p=math.inf),
        Ball(ZERO + 1, 1.0),
        Ball(ZERO[0], 1.0),
        Box(ZERO, ZERO + 1),
        Box(ZERO - 1, ZERO + 1),
        Box(ZERO, ZERO + 2),
        Box(ZERO[0], ZERO[0] + 1),
    ]
    for i, a in enumerate(regions):
        for j, b in enumerate(regions):
            assert (a == b) is (i == j)
        assert a != "a region"
    assert len(set(regions)) == len(regions)


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_a_ball_has_a_finite_radius(radius: float):
    with pytest.raises(ArgumentError, match="finite radius >= 0"):
        Ball(ZERO, radius)


@pytest.mark.parametrize("p", [0.5, -2.0, math.nan])
def test_a_ball_has_a_norm(p: float):
    with pytest.raises(ArgumentError, match=r"p in \[1, inf\]"):
        Ball(ZERO, 1.0, p=p)


@pytest.mark.parametrize("entry", [math.nan, math.inf])
def test_a_ball_has_a_finite_center(entry: float):
    with pytest.raises(ArgumentError, match="finite center"):
        Ball(torch.full((2,), entry), 1.0)


def test_a_box_has_its_low_side_below():
    with pytest.raises(ArgumentError, match="low <= high"):
        Box(ZERO + 1, ZERO)
    with pytest.raises(ArgumentError, match="remove NaN"):
        Box(ZERO, torch.full((2, 3), math.nan))
    with pytest.raises(ShapeError, match=r"\(3,\) and \(2,\)"):
        Box(torch.zeros(3), torch.zeros(2))


def test_a_box_may_be_a_point_or_unbounded():
    assert Box(ZERO, ZERO) == Box(ZERO, ZERO)
    assert Box(ZERO - math.inf, ZERO + math.inf) == Box(ZERO - math.inf, ZERO + math.inf)


def test_regions_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ball(ZERO, 1.0).radius = 2.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("region", "text"),
    [
        (Everywhere(), "everywhere"),
        (Ball(ZERO, 0.5), "l2 ball of radius 0.5"),
        (Ball(ZERO, 8 / 255, p=math.inf), "linf ball of radius 0.0313725"),
        (Box(ZERO, ZERO), "box in (2, 3)"),
    ],
)
def test_printing(region: Region, text: str):
    assert str(region) == text


@pytest.mark.parametrize(
    ("kind", "sum_kind", "max_kind"),
    [
        (Kind.EXACT, Kind.UPPER, Kind.UPPER),
        (Kind.UPPER, Kind.UPPER, Kind.UPPER),
        (Kind.LOWER, Kind.ESTIMATE, Kind.ESTIMATE),
        (Kind.ESTIMATE, Kind.ESTIMATE, Kind.ESTIMATE),
    ],
)
def test_a_global_statement_is_weaker_on_a_ball(kind: Kind, sum_kind: Kind, max_kind: Kind):
    everywhere, local = made(3.0, kind), made(2.0, Kind.EXACT, on=BALL)
    for one, other in ((everywhere, local), (local, everywhere)):
        for result, expected in ((one.sum(other), sum_kind), (one.max(other), max_kind)):
            assert result.kind is expected
            assert result.region == BALL
            assert result.lower is None


def test_a_global_lower_bound_says_nothing_about_a_ball():
    best = made(3.0, Kind.EXACT).best(made(5.0, Kind.EXACT, on=BALL))
    assert (best.kind, best.region, best.lower) == (Kind.UPPER, BALL, None)


def test_two_different_regions_are_not_mixed():
    local, shifted = made(2.0, on=BALL), made(2.0, on=Ball(torch.ones(3), 0.5))
    for operation in (local.sum, local.max, local.best):
        with pytest.raises(RegionError, match="two regions"):
            operation(shifted)
    assert local.sum(made(2.0, on=Ball(torch.zeros(3), 0.5))).region == BALL


def test_only_the_inner_map_may_be_local():
    assert made(2.0).compose(made(3.0, on=BALL)).region == BALL
    with pytest.raises(RegionError, match="everywhere"):
        made(2.0, on=BALL).compose(made(3.0))
