"""Pictures: silhouettes and depths in closed form, the right way up, and files that another reader opens."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipkit import sdf
from lipkit.errors import ArgumentError, ShapeError

BALL = sdf.Sphere(torch.zeros(3), 1.0)
FRONT = sdf.Camera((0.0, -4.0, 0.0))


def test_the_silhouette_and_the_depths_of_a_ball():
    found = sdf.render(BALL, FRONT, 10.0, width=61, height=51, tolerance=1e-9)
    # By hand: pixels on a plane at distance 1 in front of the eye at (0, -4, 0).
    half = math.tan(math.radians(20.0))
    x = (np.arange(61) + 0.5 - 30.5) / 25.5 * half
    z = -(np.arange(51) + 0.5 - 25.5) / 25.5 * half
    size = np.sqrt(1 + x[None] ** 2 + z[:, None] ** 2)
    along = 4 / size
    square = along**2 - 15
    truth = np.where(square > 0, along - np.sqrt(np.maximum(square, 0)), np.inf)
    depth = found.depth.numpy()
    assert np.array_equal(np.isfinite(depth), np.isfinite(truth))
    seen = np.isfinite(truth)
    # A size of 1e-9 is reached within that over the sine of the angle, which is above 0.01 at these pixels.
    assert np.all(depth[seen] <= truth[seen] + 1e-15)
    assert np.abs(depth[seen] - truth[seen]).max() < 1e-6
    assert found.colors.shape == (3, 51, 61)
    assert found.colors.min() >= 0
    assert found.colors.max() <= 1


def test_the_picture_is_the_right_way_up():
    # Small balls to the right and above, seen from the front.
    for place, rows, columns in (((1.0, 0.0, 0.0), (10, 20), (20, 30)), ((0.0, 0.0, 1.0), (0, 10), (10, 20))):
        depth = sdf.render(sdf.Sphere(torch.tensor(place), 0.2), FRONT, 10.0, 30, 30).depth
        where = depth.isfinite().nonzero()
        assert rows[0] <= where[:, 0].min()
        assert where[:, 0].max() < rows[1]
        assert columns[0] <= where[:, 1].min()
        assert where[:, 1].max() < columns[1]


def test_light_comes_from_the_upper_left_and_surfaces_are_seen_from_inside():
    grey = sdf.render(BALL, FRONT, 10.0, 40, 40).colors.mean(0)
    assert grey[12, 12] > grey[28, 28] + 0.1
    # From inside every pixel sees the wall, lit as if it faced the eye.
    inside = sdf.render(BALL, sdf.Camera((0.0, -0.5, 0.0), angle=90.0), 10.0, 20, 20)
    assert inside.depth.isfinite().all()
    assert float(inside.depth[9:11, 9:11].mean()) == pytest.approx(1.5, abs=0.02)


def test_more_samples_soften_edges_and_keep_the_smallest_depth():
    one, four = sdf.render(BALL, FRONT, 10.0, 24, 24), sdf.render(BALL, FRONT, 10.0, 24, 24, samples=4)
    fine = sdf.render(BALL, FRONT, 10.0, 96, 96)
    assert torch.equal(four.depth, fine.depth.reshape(24, 4, 24, 4).amin((1, 3)))
    assert torch.allclose(four.colors, fine.colors.reshape(3, 24, 4, 24, 4).mean((2, 4)))
    assert four.depth.isfinite().sum() > one.depth.isfinite().sum()


def test_files_are_read_by_others(tmp_path: Path):
    picture = sdf.render(BALL, FRONT, 10.0, 20, 16)
    picture.save(tmp_path / "ball.png")
    levels = np.asarray(Image.open(tmp_path / "ball.png"))
    assert levels.shape == (16, 20, 3)
    assert np.abs(levels / 255 - picture.colors.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-9
    depth = np.asarray(Image.open(io.BytesIO(picture.depth_png())))
    assert np.array_equal(depth > 0, picture.depth.isfinite().numpy())
    assert depth[8, 10] == depth.max() == 255
    nothing = sdf.render(BALL, sdf.Camera((0.0, -4.0, 0.0), (0.0, -8.0, 0.0)), 10.0, 5, 4)
    assert not nothing.depth.isfinite().any()
    assert np.asarray(Image.open(io.BytesIO(nothing.depth_png()))).max() == 0


def test_senseless_pictures_are_refused():
    for wrong in (
        {"target": (0.0, -4.0, 0.0)},
        {"up": (0.0, 1.0, 0.0)},
        {"up": (0.0, 0.0, 0.0)},
        {"angle": 180.0},
        {"angle": 0.0},
    ):
        with pytest.raises(ArgumentError, match="camera"):
            sdf.Camera((0.0, -4.0, 0.0), **wrong)  # pyright: ignore[reportArgumentType] - wrong on purpose
    with pytest.raises(ArgumentError, match="at least one pixel"):
        sdf.render(BALL, FRONT, 10.0, 0, 5)
    with pytest.raises(ShapeError, match="three dimensions"):
        sdf.render(sdf.Sphere(torch.zeros(2), 1.0), FRONT, 10.0)
