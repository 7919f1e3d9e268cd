"""Networks as surfaces, against distances in closed form; what is proven of them; what is refused."""

import math

import pytest
import torch

from lipkit import sdf
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.meshes import box_distance, box_mesh, icosphere
from support.unchecked import unchecked

# Seconds of one core, far from what the class can do; few steps must be long ones.
QUICK = sdf.Surface(width=32, depth=3, steps=400, batch=256, samples=20_000, rate=2e-2)
LONGER = sdf.Surface(width=48, depth=4, steps=800, batch=256, samples=20_000, rate=2e-2)
SHORT = sdf.Surface(width=8, depth=2, steps=6, batch=16, samples=200)
CUBE = ((-0.5, -0.5, -0.5), (0.5, 0.5, 0.5))


def around(count: int, reach: float, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return reach * (2 * torch.rand(count, 3, generator=draw, dtype=torch.float64) - 1)


@pytest.mark.train
def test_a_cube_becomes_its_signed_distance():
    mesh = sdf.Mesh(*box_mesh(*CUBE))
    f = QUICK(mesh)
    x = around(5000, 0.8)
    off = (f(x) - box_distance(x, *CUBE)).abs() / math.sqrt(3)
    # About 2 % of the diagonal after 400 steps; a network whose values are all near 0 is off by 9 %.
    assert float(off.mean()) < 0.03
    assert sdf.mean_deviation(f, mesh, 5000).mean < 0.02 * math.sqrt(3)


@pytest.mark.train
def test_the_constant_is_proven_and_one():
    f = QUICK(sdf.Triangles(*icosphere(2)))
    assert f.bound.kind is Kind.UPPER
    # Orthonormal in float32 when training ends, and within 1e-5 of it afterwards.
    assert 1 - 1e-4 < float(f.bound.value) < 1 + 1e-4
    x, y = around(20_000, 2.0), around(20_000, 2.0, seed=1)
    assert bool(((f(x) - f(y)).abs() <= (x - y).norm(dim=1) * float(f.bound.value)).all())


@pytest.mark.train
def test_points_with_normals_become_a_distance_too():
    draw = torch.Generator().manual_seed(0)
    cloud = torch.nn.functional.normalize(torch.randn(2048, 3, generator=draw, dtype=torch.float64), dim=1)
    f = QUICK.of_points(cloud, cloud)
    x = around(5000, 1.5)
    # About 1 % of the diagonal; with values near 0 it would be 13 %.
    assert float((f(x) - (1 - x.norm(dim=1))).abs().mean()) < 0.02 * math.sqrt(12)
    assert float(f(torch.zeros(1, 3))) > 0.5


def ring_distance(x: torch.Tensor) -> torch.Tensor:
    """The signed distance of a torus of radii 1 and .4, positive inside."""
    return 0.4 - ((x[:, :2].norm(dim=1) - 1).square() + x[:, 2].square()).sqrt()


def ring_points(count: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    u, v = (2 * math.pi * torch.rand(2, count, generator=draw, dtype=torch.float64)).unbind()
    along = 1 + 0.4 * v.cos()
    return torch.stack([along * u.cos(), along * u.sin(), 0.4 * v.sin()], 1)


@pytest.mark.train
@pytest.mark.parametrize("shape", ["sphere", "torus"])
def test_points_without_normals_become_a_signed_distance(shape: str):
    draw = torch.Generator().manual_seed(0)
    sphere = torch.nn.functional.normalize(torch.randn(2048, 3, generator=draw, dtype=torch.float64), dim=1)
    cloud, exact = (sphere, lambda x: 1 - x.norm(dim=1)) if shape == "sphere" else (ring_points(2048), ring_distance)
    f = LONGER.of_points(cloud)
    diagonal = float((cloud.amax(0) - cloud.amin(0)).norm())
    x = around(5000, 1.5)
    truth, found = exact(x), f(x)
    # Seconds of training leave about 1 % of the diagonal; the first percentile moves the zero set outwards by about
    # twice the spread of the values at the points. A field of zeros would be off by 12 %.
    assert float((found - truth).abs().mean()) < 0.03 * diagonal
    clear = truth.abs() > 0.04 * diagonal
    assert float(((found > 0) == (truth > 0))[clear].double().mean()) > 0.98
    assert f.bound.kind is Kind.UPPER
    assert float(f.bound.value) == pytest.approx(1, abs=1e-4)
    # The zero set is the first percentile of the values at the points: 20 of 2,048 lie outside of it.
    values = f(cloud).sort().values
    assert float(values[20].abs()) < 1e-12
    assert float(values[19]) < 0 < float(values[21])


@pytest.mark.train
def test_a_curve_in_the_plane_is_a_surface_as_well():
    angle = torch.arange(256, dtype=torch.float64) * (2 * math.pi / 256)
    cloud = torch.stack([angle.cos(), angle.sin()], 1)
    f = QUICK.of_points(cloud, cloud)
    x = around(5000, 1.5)[:, :2]
    assert f.dim == 2
    assert float((f(x) - (1 - x.norm(dim=1))).abs().mean()) < 0.02 * math.sqrt(8)


@pytest.mark.train
def test_labels_of_one_density_leave_the_surface_where_it_is():
    x = around(20_000, 1.0)
    f = QUICK.of_labels(x, x.norm(dim=1) < 0.7)
    y = around(5000, 1.0, seed=1)
    truth = 0.7 - y.norm(dim=1)
    # Labels alone: a ball of radius .7 within 2 % of the diagonal of the box, and right far from its surface.
    assert float((f(y) - truth).abs().mean()) < 0.02 * math.sqrt(12)
    clear = truth.abs() > 0.1
    assert float(((f(y) > 0) == (truth > 0))[clear].double().mean()) > 0.99


def test_scaling_and_moving_the_mesh_scales_and_moves_the_field():
    vertices, faces = icosphere(1)
    # A power of two and a move by a multiple of it: the points in units of the diagonal keep their bits, nearly.
    shift = torch.tensor([8.0, -16.0, 4.0], dtype=torch.float64)
    plain, moved = SHORT(sdf.Triangles(vertices, faces)), SHORT(sdf.Triangles(4 * vertices + shift, faces))
    x = around(500, 1.5)
    # Training is in float32, whose roundings six short steps hardly amplify; the field itself is off by about 1.
    assert torch.allclose(moved(4 * x + shift), 4 * plain(x), rtol=0, atol=1e-4)
    assert float(moved.bound.value) == pytest.approx(float(plain.bound.value), rel=1e-6)


def test_the_same_seed_gives_the_same_field_and_another_one_another():
    mesh = sdf.Mesh(*icosphere(1))
    torch.manual_seed(1)
    first = SHORT(mesh)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again = SHORT(mesh)
    assert torch.equal(torch.random.get_rng_state(), before)
    x = around(100, 1.5)
    assert torch.equal(first(x), again(x))
    other = sdf.Surface(width=8, depth=2, steps=6, batch=16, samples=200, seed=1)(mesh)
    assert not torch.equal(first(x), other(x))


def test_a_trained_surface_is_stored_and_comes_back_to_the_bit():
    f = SHORT(sdf.Triangles(*icosphere(1)))
    again = sdf.Network.from_state(*f.to_state())
    x = around(200, 1.5)
    assert torch.equal(again(x), f(x))
    assert torch.equal(again.measure(x).error, f.measure(x).error)
    assert float(again.bound.value) == float(f.bound.value)


def test_progress_is_told_up_to_the_end():
    calls: list[tuple[int, int]] = []
    SHORT(sdf.Triangles(*icosphere(1)), progress=lambda done, steps: calls.append((done, steps)))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_an_open_mesh_is_refused_with_the_remedy():
    vertices, faces = icosphere(1)
    with pytest.raises(ArgumentError, match=r"The mesh is open.*close_holes"):
        SHORT(sdf.Triangles(vertices, faces[1:]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 7}, r"width is even.*got 7"),
        ({"width": 0}, r"width is a whole number of at least 2, got 0"),
        ({"depth": 0}, r"depth is a whole number of at least 1, got 0"),
        ({"steps": 0}, r"steps is a whole number of at least 1, got 0"),
        ({"steps": True}, r"steps is a whole number of at least 1, got True"),
        ({"batch": 0}, r"batch is a whole number of at least 1, got 0"),
        ({"samples": 9}, r"samples is a whole number of at least 10, got 9"),
        ({"samples": 100, "batch": 200}, r"batch is at most samples = 100, got 200"),
        ({"rate": 0.0}, r"rate is a finite number > 0, got 0"),
        ({"rate": float("nan")}, r"rate is a finite number > 0, got nan"),
        ({"seed": -1}, r"seed"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, float], message: str):
    with pytest.raises(ArgumentError, match=message):
        sdf.Surface(**fields)  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_bad_clouds_are_refused():
    cloud = torch.eye(4, 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"at least 4 points, got 3"):
        SHORT.of_points(cloud[:3], cloud[:3])
    with pytest.raises(ShapeError, match=r"Each of 4 points has one normal, got 2 normals"):
        SHORT.of_points(cloud, cloud[:2])
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        SHORT.of_points(cloud * float("nan"), cloud)
    for call, kind, message in (
        (lambda: SHORT.of_points(cloud[:3]), ShapeError, r"at least 4 points, got 3"),
        (lambda: SHORT.of_points(cloud * float("nan")), NonFiniteError, "NaN or infinite"),
        (lambda: SHORT.of_points(torch.ones(5, 3)), ArgumentError, "all the same"),
        (lambda: SHORT.of_points(cloud), ArgumentError, r"look like a part of a surface.*or normals"),
    ):
        with pytest.raises(kind, match=message):
            call()
    with pytest.raises(ShapeError, match=r"Each of 4 points has a label.*shape \(3,\)"):
        SHORT.of_labels(cloud, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"Both sides need points, got 0 of 4 inside"):
        SHORT.of_labels(cloud, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="all the same"):
        SHORT.of_points(torch.ones(5, 3), torch.ones(5, 3))


def test_a_file_name_is_no_mesh():
    with (
        unchecked(),
        pytest.raises(ArgumentError, match=r"trained on a Mesh or its Triangles, got str; sdf\.read_mesh"),
    ):
        sdf.Surface()("bunny.obj")  # pyright: ignore[reportArgumentType]
