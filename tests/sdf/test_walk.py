"""Walks to a level set: how fast they come near, and that none ever crosses."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import sdf
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.printed.sdf_rays import BENT, bent_line, density_variance, published_walk


def slanted(slope: float, constant: float) -> sdf.Field:
    """x -> slope x_1 in the plane, with a constant that somebody states."""
    return sdf.Function(lambda points: slope * points[:, 0], 2, constant)


def outside(n: int, seed: int = 0) -> Tensor:
    """Points of the plane at distances between 2 and 6 of the origin."""
    draw = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.rand(n, 1, generator=draw, dtype=torch.float64)
    distance = 2 + 4 * torch.rand(n, 1, generator=draw, dtype=torch.float64)
    return distance * torch.cat([angle.cos(), angle.sin()], dim=1)


@pytest.mark.parametrize(("steps", "factor"), [(4, 0.3164), (16, 0.3561)])
def test_the_gap_to_an_exact_distance_shrinks_as_computed(steps: int, factor: float):
    ball = sdf.Sphere(torch.zeros(2), 1.0)
    starts = outside(200)
    ratio = ball(sdf.Walk(0.0, steps=steps)(ball, starts)) / ball(starts)
    # A few hundred roundings of numbers near one.
    assert ratio == pytest.approx((1 - 1 / steps) ** steps, rel=1e-12)
    assert round((1 - 1 / steps) ** steps, 4) == factor


@pytest.mark.parametrize("slope", [1.0, 0.3])
def test_the_gap_shrinks_as_fast_where_the_slope_is_small(slope: float):
    f, starts = slanted(slope, 1.0), -outside(100).abs() - 1
    ratio = f(sdf.Walk(0.0, steps=4)(f, starts)) / f(starts)
    assert ratio == pytest.approx(0.75**4, rel=1e-12)


def test_the_printed_denominator_is_slow_where_the_slope_is_small():
    starts = torch.tensor([50.0], dtype=torch.float64)
    for squared, factor in ((True, 0.75**4), (False, (1 - 0.3 / 4) ** 4)):
        # The level is so far that the walk stays on the part with slope 0.3.
        level = float(bent_line(starts)) + 3.0
        found = published_walk(starts, level, 1.0, 4, squared)
        assert float((level - bent_line(found)) / 3.0) == pytest.approx(factor, rel=1e-10)


def test_random_rates_spread_the_points_along_the_way():
    ball, starts = sdf.Sphere(torch.zeros(2), 1.0), outside(5000)
    found = sdf.Walk(-0.1, steps=8)(ball, starts, torch.Generator().manual_seed(3))
    eta = torch.rand(5000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ratio = (-0.1 - ball(found)) / (-0.1 - ball(starts))
    assert ratio == pytest.approx((1 - eta / 8) ** 8, rel=1e-12)
    assert ratio.min() < 0.35
    assert ratio.max() > 0.99


def test_published_steps_cross_and_ours_never_do():
    # The shares are numbers of the errata, recomputed from the published formula.
    starts, level = BENT
    line = sdf.Function(lambda points: bent_line(points[:, 0]), 1, 1.0)
    for rate, steps, share in ((1.0, 1, 0.80), (20.0, 16, 0.95)):
        inside = bent_line(published_walk(starts, level, rate, steps)) > 0
        assert float(inside.double().mean()) == pytest.approx(share, abs=0.005)
        ours = bent_line(sdf.Walk(level, steps=steps, rate=rate)(line, starts[:, None])[:, 0])
        assert bool((ours <= bent_line(starts).clamp(min=level)).all())
        assert bool((ours < 0).all())
    # The last walk comes to the level from every start below it.
    assert (ours.clamp(max=level) - level).abs().max() < 1e-12


def test_property_seven_fails_without_the_bound_on_the_step():
    starts, level = BENT
    crossed = bent_line(published_walk(starts, level, 1.0, 1)) > level
    # Starts below the level that the full step takes above it, which the proof says cannot be.
    assert int((crossed & (bent_line(starts) < level)).sum()) > 300


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    exponent=st.integers(-8, 8),
    level=st.floats(-0.5, 0.5),
    rate=st.sampled_from([1.0, 20.0, 1e6]),
    box=st.booleans(),
)
def test_not_even_rounding_crosses(seed: int, exponent: int, level: float, rate: float, box: bool):
    # Distances are compared in rational arithmetic, at scales where a rounding would show.
    scale = 10.0**exponent
    center = torch.tensor([3.0, -7.0], dtype=torch.float64) * scale
    ball = sdf.Sphere(center, scale)
    starts = center + outside(8, seed) * scale
    walk = sdf.Walk(
        level * scale, steps=20, rate=rate, low=-13 * scale if box else None, high=9.0 * scale if box else None
    )
    found = walk(ball, starts)
    gone = ball.radius - Fraction(walk.level)
    for point in found.tolist():
        square = sum((Fraction(x) - Fraction(c)) ** 2 for x, c in zip(point, center.tolist(), strict=True))
        assert square >= gone**2
    if rate > 1:
        assert (ball(found) - walk.level).abs().max() < 1e-12 * scale


@pytest.mark.parametrize(("seed", "rate"), [(0, 1.0), (1, 20.0), (2, 20.0)])
def test_walks_of_networks_do_not_cross_on_any_step(seed: int, rate: float):
    f, draw = sdf.Network(network(seed), torch.zeros(1, 3)), torch.Generator().manual_seed(seed)
    starts = torch.rand(300, 3, generator=draw, dtype=torch.float64) * 4 - 2
    level = float(f(starts).quantile(0.9))
    below = f(starts) < level
    found = sdf.Walk(level, steps=16, rate=rate, low=-2.0, high=2.0)(f, starts, draw)
    # The evaluation of float64 has errors below 1e-12 here; crossing by a step too long would be visible.
    assert bool((f(found)[below] <= level + 1e-12).all())
    assert bool((found[~below] == starts[~below]).all())
    assert bool((f(found)[below] > f(starts)[below] - 1e-12).any())
    assert bool((found.abs() <= 2).all())


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sides = ((3, 16), (16, 16), (16, 1))
    layers = [part for ends in sides for part in (lnn.Linear(*ends), lnn.MaxMin())]
    return nn.Sequential(*layers[:-1])


def test_a_constant_above_one_shortens_the_steps():
    f = slanted(3.0, 3.0)
    found = sdf.Walk(0.0, steps=1, rate=1e9)(f, torch.tensor([[-1.0, 5.0]]))
    assert found[0].tolist() == pytest.approx([0.0, 5.0], abs=1e-11)
    assert found[0, 0] <= 0


def test_clipping_shortens_a_step_and_a_start_outside_is_refused():
    ball = sdf.Sphere(torch.zeros(2), 1.0)
    walk = sdf.Walk(0.0, steps=4, rate=4.0, low=2.0, high=torch.tensor([5.0, 5.0]))
    assert walk(ball, torch.tensor([[4.0, 3.0]])).min() >= 2.0
    with pytest.raises(ArgumentError, match="outside of the box"):
        walk(ball, torch.tensor([[0.0, 3.0]]))
    with pytest.raises(ShapeError, match="one end or one for each"):
        sdf.Walk(0.0, low=torch.zeros(3))(ball, torch.zeros(1, 2))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 1, 3)])
def test_modules_walk_as_fields_do(shape: tuple[int, ...]):
    model = nn.Sequential(nn.Flatten(), network(5)).double()
    f = sdf.Network(model, torch.zeros(1, *shape, dtype=torch.float64))
    starts = torch.rand(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    walk = sdf.Walk(float(f(starts).max()), steps=8, rate=2.0, low=0.0, high=1.0)
    expected = walk(f, starts)
    found = walk.toward(model, starts.view(-1, *shape))
    assert found.shape == (50, *shape)
    # The bound of the constant is a little above 1, for it is proven.
    assert found.flatten(1).sub(expected).abs().max() < 1e-6
    assert all(p.grad is None for p in model.parameters())
    single = walk.toward(model.float(), starts.float().view(-1, *shape))
    assert single.dtype is torch.float32
    assert not single.requires_grad
    assert single.flatten(1).sub(expected).abs().max() < 1e-3


def test_modules_of_inference_mode_are_refused_and_inputs_of_it_walk():
    model = network(2)
    with torch.inference_mode():
        inputs, made = torch.zeros(4, 3), nn.Linear(3, 1)
        expected = sdf.Walk(1.0).toward(model, torch.zeros(4, 3))
    assert torch.equal(sdf.Walk(1.0).toward(model, inputs), expected)
    with pytest.raises(ArgumentError, match=r"This Linear was made in torch\.inference_mode"):
        sdf.Walk(1.0).toward(made, torch.zeros(4, 3))


def test_gradients_that_vanish_or_fail_are_no_surprise():
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :1] * 0.0 - 1.0

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :1].clamp(max=0.0).sqrt()

    starts = outside(5).float()
    assert torch.equal(sdf.Walk(0.0).toward(Flat(), starts), starts)
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        sdf.Walk(1.0).toward(Broken(), starts)
    with pytest.raises(ShapeError, match="one output"):
        sdf.Walk(1.0).toward(nn.Identity(), starts)
    # At the center of a ball the gradient is zero, and below the level of its radius a walk would be under way.
    ball = sdf.Sphere(torch.zeros(2), 1.0)
    assert sdf.Walk(2.0)(ball, torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [({"level": math.nan}, "level"), ({"steps": -1}, "steps"), ({"rate": 0.0}, "rate"), ({"rate": math.inf}, "rate")],
)
def test_senseless_walks_are_refused(values: dict[str, float], message: str):
    with pytest.raises(ArgumentError, match=message):
        sdf.Walk(**{"level": 0.0, **values})  # pyright: ignore[reportArgumentType] - steps is a number too
    with pytest.raises(ArgumentError, match="constant"):
        sdf.Walk(0.0).toward(nn.Identity(), torch.zeros(1, 1), constant=0.0)


def test_no_steps_give_the_points_back():
    ball, starts = sdf.Sphere(torch.zeros(2), 1.0), outside(4)
    assert torch.equal(sdf.Walk(0.0, steps=0)(ball, starts), starts)


def test_the_published_density_is_no_standard_normal():
    # A sum over a fine grid has the digits of float64 for a smooth function that vanishes at the ends.
    for eta in (0.5, 1.0, 3.0):
        assert density_variance(eta) == pytest.approx(1 / (2 * eta), rel=1e-12)
