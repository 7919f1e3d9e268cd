"""Figures are files of plain numbers: complete, reproducible, and told apart without colour."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.report import method_figures as figures
from lipkit.report.figure_style import LOOKS, style
from lipkit.report.method_figures import Curve, Panel, Point, convergence, ladder

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
    assert len({marker for _, _, marker in LOOKS}) == len(LOOKS)
    assert len({str(dash) for _, dash, _ in LOOKS}) == len(LOOKS)


def test_more_methods_than_looks_are_refused(tmp_path: Path):
    many = tuple(Curve(f"method {i}", (1.0,), (0.1,), above=True) for i in range(len(LOOKS) + 1))
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


RUNGS = Panel(
    "first",
    (
        Point("coarse", 0.01, 44.321, Kind.UPPER),
        Point("fine", 0.5, 34.7205, Kind.UPPER),
        Point("climbed", 0.4, 34.5679, Kind.LOWER),
        Point("guessed", 0.2, 39.0, Kind.ESTIMATE),
    ),
)
DEEP = Panel("second", (Point("wide", 3.0, 1e12, Kind.UPPER), Point("known", 1.0, 20.0, Kind.EXACT)))


def test_a_ladder_names_every_rung_with_a_number_that_is_true(tmp_path: Path):
    png, svg = ladder((RUNGS, DEEP), "A title", tmp_path / "ladder")
    pixels = matplotlib.image.imread(png)
    height, width, _ = pixels.shape
    ink = np.any(pixels[..., :3] < 0.9, axis=-1)
    for part in (ink[: height // 2, : width // 2], ink[height // 2 :, : width // 2], ink[:, int(0.7 * width) :]):
        assert part.mean() > 0.002
    text = svg.read_text()
    for words in ("A title", "first", "second", "seconds", "exact", "upper bound", "lower bound", "estimate"):
        assert words in text
    # Upper bounds up, lower ones down, estimates to nearest.
    for words in ("coarse  44.33", "fine  34.73", "climbed  34.56", "guessed  39", "wide  1e+12", "known  20"):
        assert words in text


def test_a_ladder_is_reproducible_and_sees_a_moved_rung(tmp_path: Path):
    first, second = (ladder((RUNGS,), "A title", tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    moved = Panel("first", (*RUNGS.points[:3], Point("guessed", 0.2, 41.0, Kind.ESTIMATE)))
    third = ladder((moved,), "A title", tmp_path / "three")
    assert not np.array_equal(matplotlib.image.imread(first[0]), matplotlib.image.imread(third[0]))


def test_the_truth_lies_between_the_best_bounds():
    assert RUNGS.between == (34.5679, 34.7205)
    assert DEEP.between is None


def test_every_kind_has_a_marker_of_its_own():
    assert figures._MARKERS.keys() == set(Kind)
    assert len({marker for marker, _ in figures._MARKERS.values()}) == len(Kind)


@pytest.mark.parametrize("seed", range(20))
def test_names_move_as_little_as_they_can(seed: int):
    heights = np.sort(np.random.default_rng(seed).uniform(-0.2, 0.8, size=9))
    gaps = 0.066 * np.arange(9)
    best = np.minimum(isotonic_regression(heights - gaps).x, figures._TOP - gaps[-1]) + gaps
    # Sums of nine numbers of the order of one, in another order.
    assert figures._apart(heights.tolist(), 0.066) == pytest.approx(best.tolist(), abs=1e-12)


def test_a_ladder_without_rungs_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="at least one panel"):
        ladder((), "A title", tmp_path / "ladder")
    with pytest.raises(ArgumentError, match="'bare' needs at least one point"):
        Panel("bare", ())


@pytest.mark.parametrize(("seconds", "value"), [(0.0, 1.0), (1.0, 0.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_a_rung_that_makes_no_sense_is_refused(seconds: float, value: float):
    with pytest.raises(ArgumentError, match="finite seconds > 0 and a finite value > 0"):
        Point("some method", seconds, value, Kind.UPPER)
