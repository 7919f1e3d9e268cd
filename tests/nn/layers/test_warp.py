"""Warps: against torch's sampling, inverses, constants by dense SVD, and derivatives in the motion."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked

angles = st.floats(-4, 4)
shifts = st.tuples(st.floats(-1, 1), st.floats(-1, 1))
matrices = st.lists(st.floats(-2, 2), min_size=4, max_size=4).map(lambda m: torch.tensor(m).double().reshape(2, 2))
F64 = torch.float64


def smooth(size: int) -> Tensor:
    """A bump that vanishes well inside the image."""
    line = torch.linspace(-1, 1, size, dtype=F64)
    x, y = torch.meshgrid(line, line, indexing="ij")
    return torch.exp(-12 * ((x - 0.1) ** 2 + 2 * (y + 0.05) ** 2 + x * y))


@settings(max_examples=40)
@given(angles, shifts, st.integers(2, 7))
def test_agrees_with_grid_sample(angle: float, shift: tuple[float, float], size: int) -> None:
    warp = lnn.RigidWarp(angle, shift, dtype=F64)
    image = torch.randn(2, 3, size, size, dtype=F64)
    line = torch.linspace(-1, 1, size, dtype=F64)
    source = warp.move_back(torch.stack(torch.meshgrid(line, line, indexing="ij"), -1))
    # torch takes columns first.
    expected = functional.grid_sample(image, source.flip(-1).expand(2, -1, -1, -1), align_corners=True)
    torch.testing.assert_close(warp(image), expected, rtol=0, atol=1e-12)


@settings(max_examples=60)
@given(matrices, shifts, angles)
def test_motions_invert_each_other(matrix: Tensor, shift: tuple[float, float], angle: float) -> None:
    warps: list[lnn.RigidWarp | lnn.AffineWarp] = [lnn.RigidWarp(angle, shift, dtype=F64)]
    if float(torch.linalg.det(matrix).abs()) > 0.05:
        warps.append(lnn.AffineWarp(matrix, shift))
    points = torch.randn(20, 2, dtype=F64)
    for warp in warps:
        # The inverse of a matrix with determinant 0.05 and entries up to 2 loses two digits.
        torch.testing.assert_close(warp.move_back(warp.move(points)), points, rtol=0, atol=1e-12)
        torch.testing.assert_close(warp.inverse().move(warp.move(points)), points, rtol=0, atol=1e-12)
        torch.testing.assert_close(warp.inverse().inverse().move(points), warp.move(points), rtol=0, atol=1e-12)


def test_the_printed_inverse_does_not_undo_the_motion() -> None:
    """With minus theta_3 sin theta_1 in its first entry, as printed; ours has plus."""
    angle, shift = 0.5, torch.tensor([0.0, 1.0], dtype=F64)
    warp = lnn.RigidWarp(angle, (0.0, 1.0), dtype=F64)
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=F64)
    printed = shift @ turned - torch.tensor([-sine, cosine], dtype=F64)
    torch.testing.assert_close(warp.move_back(shift), torch.zeros(2, dtype=F64))
    assert abs(float(printed[0]) - 2 * sine) < 1e-12


def test_images_invert_each_other() -> None:
    """Exactly for whole pixels and quarter turns; for smooth images up to the error of interpolation."""
    image = functional.pad(torch.randn(3, 3, dtype=F64), (3, 3, 3, 3))
    for warp in (lnn.RigidWarp(math.pi / 2, dtype=F64), lnn.RigidWarp(0.0, (0.5, -0.25), dtype=F64)):
        torch.testing.assert_close(warp.inverse()(warp(image)), image, rtol=0, atol=1e-14)
    errors = []
    for size in (33, 65):
        bump = smooth(size)
        for warp in (
            lnn.RigidWarp(0.6, (0.1, 0.2), dtype=F64),
            lnn.AffineWarp(torch.tensor([[1.1, 0.2], [-0.1, 0.9]])),
        ):
            errors += [float((warp.inverse()(warp(bump)) - bump).abs().max().detach())]
    # Interpolation of a smooth function is off by the square of the distance of pixels.
    assert max(errors[:2]) < 0.1
    assert max(errors[2:]) < max(errors[:2]) / 3


@settings(max_examples=40)
@given(angles, shifts, st.integers(2, 6), st.integers(2, 6))
def test_the_constant_of_rigid_motions(angle: float, shift: tuple[float, float], height: int, width: int) -> None:
    warp = lnn.RigidWarp(angle, shift, dtype=F64)
    matrix = torch.func.jacrev(warp)(torch.zeros(height, width, dtype=F64)).detach().reshape(height * width, -1)
    declared = float(warp.declared_lipschitz((height, width)).value)
    assert float(torch.linalg.svdvals(matrix)[0]) <= declared * (1 + 1e-12)
    assert declared <= warp.gain
    # Convex weights: no value is left.
    assert float(matrix.min()) >= 0
    assert float(matrix.sum(1).max()) <= 1 + 1e-12
    expected = 1 + 4 * (1 - abs(math.cos(angle))) * (1 - abs(math.sin(angle)))
    assert abs(declared**2 - expected) < 1e-8


@settings(max_examples=40)
@given(matrices, shifts)
def test_the_constant_of_affine_motions(matrix: Tensor, shift: tuple[float, float]) -> None:
    if float(torch.linalg.det(matrix).abs()) < 0.1:
        return
    warp = lnn.AffineWarp(matrix, shift)
    found = torch.func.jacrev(warp)(torch.zeros(6, 5, dtype=F64)).detach().reshape(30, 30)
    # Schur's test on the whole matrix, of which an image is a part.
    declared = float(warp.declared_lipschitz((6, 5)).value)
    assert float(found.sum(0).max()) <= declared**2 * (1 + 1e-12)
    assert float(torch.linalg.svdvals(found)[0]) <= declared * (1 + 1e-12)


def test_sums_over_a_moved_lattice_are_largest_at_the_origin() -> None:
    """The step of the proof that needs Poisson's formula, tried on a grid of offsets."""
    torch.manual_seed(0)
    whole = torch.arange(-25, 26, dtype=F64)
    lattice = torch.cartesian_prod(whole, whole)
    offsets = torch.cartesian_prod(torch.linspace(0, 1, 21, dtype=F64), torch.linspace(0, 1, 21, dtype=F64))
    for _ in range(20):
        matrix = torch.randn(2, 2, dtype=F64) * 0.7 + torch.eye(2, dtype=F64)
        if float(torch.linalg.svdvals(matrix)[-1]) < 0.15:
            # Points beyond 25 would come within sqrt(2) + 2 of the origin.
            continue
        points = lattice @ matrix
        sums = (1 - (points + offsets[:, None] * 2 - 1).abs()).clamp(min=0).prod(-1).sum(-1)
        center = (1 - points.abs()).clamp(min=0).prod(-1).sum()
        assert float(sums.max()) <= float(center) + 1e-12


def test_a_translation_has_constant_one_and_attains_it() -> None:
    warp = lnn.RigidWarp(0.0, (0.3, 0.1))
    assert float(warp.declared_lipschitz((9, 9)).value) == 1


def test_derivatives_in_the_motion() -> None:
    """Finite differences; and the closed form for a turn, sum of v (D_x Y - D_y X), with D that of the turned image."""
    size, angle = 101, 0.5
    image, weight = smooth(size), torch.randn(size, size, dtype=F64)
    line = torch.linspace(-1, 1, size, dtype=F64)
    x, y = torch.meshgrid(line, line, indexing="ij")
    # A smooth weight, so that the errors of interpolation cancel.
    weight = torch.sin(3 * x + 1) * torch.cos(2 * y)
    warp = lnn.RigidWarp(angle, dtype=F64)
    (found,) = torch.autograd.grad((warp(image) * weight).sum(), warp.angle)
    turned = warp(image).detach()
    along_x, along_y = torch.gradient(turned, spacing=float(line[1] - line[0]))
    ours = float((weight * (along_x * y - along_y * x)).sum())
    # The factor of the turn is missing in the printed form: gradients of the turned image times J of the inverse.
    cosine, sine = math.cos(angle), math.sin(angle)
    printed = float((weight * (along_x * (-x * sine + y * cosine) + along_y * (-x * cosine - y * sine))).sum())
    # Central differences of a bump on a grid of 0.02 are off by a percent.
    assert abs(ours / float(found) - 1) < 0.02
    assert abs(printed / float(found) - 1) > 0.2


def test_the_printed_interpolation_vanishes_at_pixels() -> None:
    """Weights ceil(g) - g and g - floor(g) are both 0 at whole g; ours is the pixel itself there."""
    g = torch.tensor([1.0, 1.5])
    assert (g.ceil() - g).tolist() == [0.0, 0.5]
    assert (g - g.floor()).tolist() == [0.0, 0.5]
    image = torch.rand(5, 5) + 1
    torch.testing.assert_close(lnn.RigidWarp()(image), image)


def test_narrow_images_and_refusals() -> None:
    for shape in ((1, 4), (3, 1), (1, 1)):
        image = torch.randn(shape)
        torch.testing.assert_close(lnn.RigidWarp()(image), image)
    assert lnn.RigidWarp(0.3)(torch.randn(2, 4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with unchecked(), pytest.raises(ShapeError, match="floating-point images"):
        lnn.RigidWarp()(torch.ones(4, 4, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="invertible"):
        lnn.AffineWarp(torch.zeros(2, 2))
    with pytest.raises(ShapeError, match="height, width"):
        lnn.RigidWarp().declared_lipschitz((4,))
    with pytest.raises(ArgumentError, match="enlarges the image"):
        lnn.AffineWarp(300 * torch.eye(2)).declared_lipschitz((4, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 4, math.pi / 2])
@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.037, 0.21)])
def test_weights_as_they_are_rounded_keep_the_constant(dtype: torch.dtype, angle: float, shift: tuple[float, float]):
    warp, n = lnn.RigidWarp(angle, shift).to(dtype), 12
    images = torch.eye(n * n, dtype=dtype).reshape(-1, n, n)
    # Each entry of these results is one weight, so nothing is added and nothing rounded.
    matrix = warp(images).detach().double().reshape(n * n, -1).mT
    stated = float(warp.declared_lipschitz((n, n)).value)
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= stated <= warp.gain
    assert float(matrix.sum(1).max()) <= 1
    assert float(matrix.min()) >= 0
