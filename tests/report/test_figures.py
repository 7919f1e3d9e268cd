"""Figures are files of plain numbers: complete, reproducible, and told apart without colour."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest

from lipkit.errors import ArgumentError
from lipkit.report import figures
from lipkit.report.figures import Curve, convergence, style

CURVES = (
    Curve("falling", (1.0, 10.0, 100.0), (2.0, 1e-3, 0.0), above=True),
    Curve("level", (2.0, 20.0), (1e-1, 1e-1), above=True),
    Curve("falling", (1.0, 10.0, 100.0), (0.5, 1e-5, 1e-12), above=False),
)


def draw(stem: Path, curves: tuple[Curve, ...] = CURVES) -> tuple[Path, Path]:
    return convergence(curves, "A title", ("a limit", 1e-3), stem)


def test_writes_a_picture_and_a_drawing(tmp_path: Path):
    png, svg = draw(tmp_path / "figure")
    assert (png, svg) == (tmp_path / "figure.png", tmp_path / "figure.svg")
    pixels = matplotlib.image.imread(png)
    height, width, _ = pixels.shape
    assert (width, height) == (1200, 750)
    # Ink everywhere it belongs: the upper panel, the lower panel, and the legend to the right of both.
    ink = np.any(pixels[..., :3] < 0.9, axis=-1)
    for part in (ink[: height // 2, : width // 2], ink[height // 2 :, : width // 2], ink[:, int(0.78 * width) :]):
        assert part.mean() > 0.002
    text = svg.read_text()
    for words in (
        "A title",
        "a limit",
        "falling",
        "level",
        "upper bounds",
        "lower bounds",
        "true norm",
        "milliseconds",
    ):
        assert words in text


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path):
    first = [path.read_bytes() for path in draw(tmp_path / "one")]
    second = [path.read_bytes() for path in draw(tmp_path / "two")]
    assert first == second


def test_a_point_that_moves_is_seen(tmp_path: Path):
    moved = Curve("level", (2.0, 20.0), (1e-1, 1e-2), above=True)
    before, _ = draw(tmp_path / "one")
    after, _ = draw(tmp_path / "two", (CURVES[0], moved, CURVES[2]))
    assert not np.array_equal(matplotlib.image.imread(before), matplotlib.image.imread(after))


def test_every_look_differs_without_colour():
    assert len({marker for _, _, marker in figures._LOOKS}) == len(figures._LOOKS)
    assert len({str(dash) for _, dash, _ in figures._LOOKS}) == len(figures._LOOKS)


def test_more_methods_than_looks_are_refused(tmp_path: Path):
    many = tuple(Curve(f"method {i}", (1.0,), (0.1,), above=True) for i in range(len(figures._LOOKS) + 1))
    with pytest.raises(ArgumentError, match="tells 5 methods apart, got 6"):
        draw(tmp_path / "figure", many)


def test_the_style_is_put_back(tmp_path: Path):
    before: dict[str, object] = dict(mpl.rcParams)  # pyright: ignore[reportAssignmentType]
    draw(tmp_path / "figure")
    assert dict(mpl.rcParams) == before
    assert any(before[key] != value for key, value in style().items())


@pytest.mark.parametrize(
    ("times", "distances", "words"),
    [
        ((), (), "at least one; got 0 and 0"),
        ((1.0,), (0.1, 0.2), "as many times as distances, and at least one; got 1 and 2"),
        ((1.0,), (-0.1,), "distances >= 0"),
        ((0.0,), (0.1,), "times > 0"),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(times: tuple[float, ...], distances: tuple[float, ...], words: str):
    with pytest.raises(ArgumentError, match=words):
        Curve("some method", times, distances, above=True)
