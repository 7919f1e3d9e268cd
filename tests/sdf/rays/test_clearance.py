"""Free radii: of a field's own zero set, and of a surface that it only comes near."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import sdf
from lipkit.errors import ArgumentError
from support.unchecked import unchecked


@dataclass(frozen=True)
class UpTo:
    """A proven deviation, as a number."""

    upper: float


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(1e-6, 1e6))
def test_radii_are_below_the_true_distance_in_rational_arithmetic(point: list[float], radius: float):
    center = [1.0, -2.0, 1e-3]
    x = torch.tensor([point], dtype=torch.float64)
    found = Fraction(sdf.clearance(sdf.Sphere(torch.tensor(center, dtype=torch.float64), radius), x).item())
    square = sum(
        (Fraction(a) - Fraction(b)) ** 2
        for a, b in zip(point, torch.tensor(center, dtype=torch.float64).tolist(), strict=True)
    )
    # | |x - c| - R | >= r, without roots.
    big, small = Fraction(radius) + found, Fraction(radius) - found
    assert found == 0 or square >= big**2 or (small >= 0 and square <= small**2)


def test_radii_are_as_large_as_rounding_allows():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.5], [0.0, 1.0]])
    found = sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), x)
    assert found.tolist() == pytest.approx([4.0, 0.5, 0.0], abs=1e-13)


def test_the_distance_to_data_needs_the_deviation():
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(300, 3, generator=draw, dtype=torch.float64)
    ball = sdf.Sphere(torch.zeros(3), 1.0)
    x = 6 * torch.rand(100_000, 3, generator=draw, dtype=torch.float64) - 3
    truth = torch.cat([torch.cdist(part, data).amin(1) for part in x.split(10_000)])
    # Published: |f| never overestimates the distance. It does nearly everywhere, for data are not the zeros of f.
    share = (sdf.clearance(ball, x) > truth).double().mean().item()
    assert share > 0.3
    upper = float(ball(data).abs().max()) * (1 + 1e-12)
    assert bool((sdf.clearance(ball, x, UpTo(upper)) <= truth).all())
    # With nine tenths of it the statement is false somewhere, so the term is no waste.
    near = data[ball(data).abs().argmax()] * torch.linspace(1, 3, 200, dtype=torch.float64)[:, None]
    distance = torch.cdist(near, data).amin(1)
    assert bool((sdf.clearance(ball, near, UpTo(0.9 * upper)) > distance).any())


@pytest.mark.parametrize("upper", [-1.0, float("inf"), float("nan")])
def test_senseless_deviations_are_refused(upper: float):
    with pytest.raises(ArgumentError, match="upper bound"):
        sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), torch.zeros(1, 2), UpTo(upper))


def test_a_number_is_no_deviation():
    with unchecked(), pytest.raises(ArgumentError, match=r"got 0\.5"):
        sdf.clearance(sdf.Sphere(torch.zeros(2), 1.0), torch.zeros(1, 2), 0.5)  # pyright: ignore[reportArgumentType]


def _tetrahedron() -> sdf.Mesh:
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    return sdf.Mesh(vertices, torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))


def test_the_deviation_of_another_field_is_refused():
    mesh, x = _tetrahedron(), torch.tensor([[2.0, 0, 0]])
    deviation, shrunk = sdf.deviation(mesh, mesh, 5e-2), sdf.Offset(_tetrahedron(), -0.3)
    # The true distance to the mesh is 1, and |f| is 1.3: with 0.05 of the mesh itself 1.25 would be called free.
    with pytest.raises(ArgumentError, match="proven for another field, a Mesh, and says nothing of this Offset"):
        sdf.clearance(shrunk, x, deviation)
    with pytest.raises(ArgumentError, match="proven for another field"):
        sdf.sweep(shrunk, torch.tensor([[-2.0, 0, 0], [-0.5, 0, 0]]), 0.3, deviation)
    own = sdf.clearance(shrunk, x, sdf.deviation(shrunk, mesh, 5e-2))
    assert 0.9 < float(own) <= 1
    assert 0.9 < float(sdf.clearance(mesh, x, deviation)) <= 1
    # A number that somebody states is theirs; so is one that comes without its field.
    stated = sdf.Deviation(deviation.lower, deviation.upper, 5e-2, deviation.evaluations)
    assert stated == deviation
    assert float(sdf.clearance(shrunk, x, stated)) > 1


def test_the_deviation_of_a_network_is_that_of_its_weights():
    mesh, x = _tetrahedron(), torch.tensor([[2.0, 0, 0]])
    model = torch.nn.Linear(3, 1).double()
    field = sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64))
    deviation, again = sdf.deviation(field, mesh, 5e-2), sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64))
    assert torch.equal(sdf.clearance(again, x, deviation), sdf.clearance(field, x, deviation))
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(ArgumentError, match="another field"):
        sdf.clearance(sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64)), x, deviation)


def test_what_is_no_field_is_refused():
    points, path = torch.zeros(1, 3), torch.eye(3)
    with unchecked():
        for call in (
            lambda f: sdf.clearance(f, points),
            lambda f: sdf.sweep(f, path, 0.1),
            lambda f: sdf.trace(f, points, points + 1, 3.0),
            lambda f: sdf.deviation(f, _tetrahedron(), 0.1),
            lambda f: sdf.Walk(0.0)(f, points),
            lambda f: sdf.Energy(f, 0.0, 1.0),
        ):
            with pytest.raises(ArgumentError, match="A field is needed here, got function"):
                call(lambda x: x)
