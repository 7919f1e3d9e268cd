"""Drawings read back: what is drawn are the numbers, in colours of the page, told apart without them."""

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from lipkit.report.figure_style import LOOKS, page_style
from lipkit.report.html import charts
from lipkit.report.results.contents import Contents


class Drawing:
    """An SVG read back: paths by id, in the units of the axes."""

    def __init__(self, svg: str, name: str) -> None:
        self.root, self.name = ElementTree.fromstring(svg), name
        self.x, self.y = self.scale("x"), self.scale("y")

    def group(self, gid: str) -> ElementTree.Element:
        (found,) = [node for node in self.root.iter() if node.get("id") == f"{self.name}-{gid}"]
        return found

    def path(self, gid: str) -> list[tuple[float, float]]:
        """The corners of the first path of a group, in data units."""
        node = self.group(gid)
        path = next(one for one in node.iter("path") if one.get("d")) if node.tag != "path" else node
        pairs = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
        # Areas are defined once and put to their place.
        place = next(node.iter("use")) if node.find("defs") is not None and node[0].tag == "defs" else None
        dx, dy = (0.0, 0.0) if place is None else (float(place.get(axis, "0")) for axis in "xy")
        return [(self.x(float(a) + dx), self.y(float(b) + dy)) for a, b in pairs]

    def scale(self, axis: str) -> Callable[[float], float]:
        """From pixels to numbers, by two ticks and what is written at them."""
        ticks: list[tuple[float, float]] = []
        for node in self.root.iter("g"):
            if re.fullmatch(rf"{self.name}-{axis}tick_\d+", node.get("id", "")):
                label = "".join(next(node.iter("text")).itertext()).replace("−", "-").removesuffix(" %")
                place = float(next(node.iter("use")).get(axis, "nan"))
                ticks.append((place, float(label)))
        (a, first), *_, (b, last) = ticks
        return lambda pixel: first + (pixel - a) * (last - first) / (b - a)


# Coordinates are written with six decimals of a pixel; an axis spans some hundred pixels.
CLOSE = 1e-5


def test_the_curves_show_the_numbers(contents: Contents):
    drawn = Drawing(charts.accuracy(contents), "accuracy")
    expected = [(point.radius, 100 * point.share.value) for point in contents.curve]
    # Points on a straight line are left out, so the drawn line is compared where the data are.
    xs, ys = zip(*drawn.path("certified"), strict=True)
    known = np.interp([x for x, _ in expected], xs, ys)
    assert known == pytest.approx([y for _, y in expected], abs=100 * CLOSE)
    assert contents.overall.attacked is not None
    attacked = [(eps, 100 * s.value) for eps, s in zip(contents.eps, contents.overall.attacked, strict=True)]
    assert [y for point in drawn.path("attacked") for y in point] == pytest.approx(
        [y for point in attacked for y in point], abs=100 * CLOSE
    )
    level = 100 * contents.overall.clean.value
    assert [y for _, y in drawn.path("clean")] == pytest.approx([level] * 2, abs=100 * CLOSE)


def test_the_band_is_the_interval(contents: Contents):
    corners = Drawing(charts.accuracy(contents), "accuracy").path("band")
    ends = {round(100 * end, 3) for point in contents.curve for end in (point.share.low, point.share.high)}
    for _, y in corners:
        assert min(abs(y - end) for end in ends) < 2e-3


def test_the_bars_are_the_counts(contents: Contents):
    found = contents.histogram
    drawn = Drawing(charts.radii(found, 2.0), "radii")
    for i, count in enumerate(found.counts):
        xs, ys = zip(*drawn.path(f"bar-{i}"), strict=True)
        assert (min(xs), max(xs)) == pytest.approx(found.edges[i : i + 2], abs=CLOSE)
        assert (min(ys), max(ys)) == pytest.approx((0, count), abs=CLOSE * max(found.counts) * 10)


def test_training_and_depth_show_the_numbers(contents: Contents):
    entries, rows = contents.training, contents.depth
    assert entries is not None
    assert rows is not None
    drawn = Drawing(charts.training(entries, "constant", "constant", lambda entry: entry.constant), "constant")
    (x0, y0), *_, (x1, y1) = drawn.path("constant")
    first, last = entries[0], entries[-1]
    assert (x0, y0, x1, y1) == pytest.approx((first.step, first.constant, last.step, last.constant), rel=1e-4)
    svg = charts.depth(rows)
    for row in rows:
        assert f">{row.name}</text>" in svg


def test_a_spectrum_shows_its_values(contents: Contents):
    assert contents.spectra is not None
    one = contents.spectra.shown[-1]
    drawn = Drawing(charts.spectrum(one, 0, 2.0), "spectrum-0").path("values")
    assert [y for _, y in drawn] == pytest.approx(one.values, abs=1e-4)


def test_a_drawing_names_only_colours_of_the_page(contents: Contents):
    svg = charts.accuracy(contents) + charts.radii(contents.histogram, 2.0)
    # Every colour is a variable of the page; its value in the drawing is only for those who take it out.
    assert set(re.findall(r"(?<!, )#[0-9a-fA-F]{6}", svg)) == set()
    assert set(re.findall(r"var\(--(\w+)", svg)) == {"ink", "faint", "blue", "orange"}
    assert page_style()["figure.facecolor"] == "none"


def test_lines_differ_without_colour():
    assert len({str(dash) for _, dash, _ in LOOKS}) == len({marker for *_, marker in LOOKS}) == len(LOOKS)
