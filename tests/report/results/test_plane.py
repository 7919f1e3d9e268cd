"""The map of a classifier of the plane, against one whose answers and distances are known in closed form."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lipkit.bounds import DAG
from lipkit.certify import accuracy, head_pairwise
from lipkit.data import Examples
from lipkit.errors import ArgumentError
from lipkit.report.figure_style import drawing
from lipkit.report.html.charts import draw_map
from lipkit.report.html.page import render_page
from lipkit.report.results import gather
from lipkit.report.results.about import About
from lipkit.report.results.contents import Contents
from lipkit.report.results.gather import plane

# The class is 1 above the line 3 x + 4 y = 5; the distance to it is |3 x + 4 y - 5| / 5.
ACROSS, UP, LINE = 3.0, 4.0, 5.0


@pytest.fixture
def half_planes() -> tuple[nn.Module, Examples]:
    line = nn.Linear(2, 2)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[0.0, 0.0], [ACROSS, UP]]))
        line.bias.copy_(torch.tensor([0.0, -LINE]))
    model = nn.Sequential(line)
    # Their range is no multiple of (4, 3): the line would be the same with both axes exchanged.
    points = torch.tensor([[-4.0, -1.0], [4.0, 3.0], [1.0, 2.0], [0.5, 0.0]])
    return model, Examples(points, (points @ torch.tensor([ACROSS, UP]) > LINE).long(), ("below", "above"))


def test_a_map_has_the_distances_of_a_line(half_planes: tuple[nn.Module, Examples]) -> None:
    model, data = half_planes
    found = plane(model, data, head_pairwise(model, data.inputs[:1], DAG()))
    x, y = np.meshgrid(found.across, found.up)
    side = (ACROSS * x + UP * y - LINE) / math.hypot(ACROSS, UP)
    clear = abs(side.ravel()) > 1e-5
    assert (np.array(found.predicted)[clear] == (side.ravel() > 0)[clear]).all()
    radii = np.array(found.radii)
    # Rounded down: the points of the grid are float32, and so are weights of the model.
    assert (radii <= abs(side.ravel()) + 1e-6).all()
    assert radii == pytest.approx(abs(side.ravel()), abs=1e-5)
    # A margin of a twentieth on each side of the test points.
    assert (found.across[0], found.across[-1]) == pytest.approx((-4.4, 4.4))
    assert (found.up[0], found.up[-1]) == pytest.approx((-1.2, 3.2))
    assert found.labels == (0, 1, 1, 0)


def test_lines_are_where_the_radius_is_reached(half_planes: tuple[nn.Module, Examples]) -> None:
    contour = pytest.importorskip("matplotlib.contour", reason="matplotlib is not installed")
    model, data = half_planes
    found = plane(model, data, head_pairwise(model, data.inputs[:1], DAG()))
    with drawing(4.0, 4.0) as (_, axes):
        draw_map(axes, found, (0.5, 1.0, 1e9), data.classes)
        drawn: list[Any] = [part for part in axes.collections if isinstance(part, contour.ContourSet)]
    *of_classes, radii = drawn
    areas, decisions = of_classes[::2], of_classes[1::2]
    assert [part.filled for part in drawn] == [True, False] * 2 + [False]
    assert [list(part.levels) for part in (*decisions, radii)] == [[0], [0], [0.5, 1.0]]
    # Between two points of the grid all lines are interpolated. Radii are rounded by 1e-5 at most, as above.
    lines = [(path, 0.0) for part in (*areas, *decisions) for path in part.get_paths()] + _lines(radii)
    low, high = (found.across[0], found.up[0]), (found.across[-1], found.up[-1])
    for path, level in lines:
        inside = [v for v in path.vertices if all(a < x < b for a, x, b in zip(low, v, high, strict=True))]
        assert inside
        x, y = np.transpose(inside)
        assert abs(ACROSS * x + UP * y - LINE) / math.hypot(ACROSS, UP) == pytest.approx(level, abs=1e-4)


def _lines(found: Any) -> list[tuple[Any, float]]:
    return list(zip(found.get_paths(), found.levels, strict=True))


def _contents(model: nn.Module, data: Examples) -> Contents:
    bound = head_pairwise(model, data.inputs[:1], DAG())
    evaluation = accuracy(model, [(data.inputs, data.labels)], bound, (0.5, 1.0))
    about = About.here(command="lipkit", date="today", seconds=None, seed=0, device="cpu", model="line", fields={})
    return gather.gather_contents(model, data, evaluation, bound, [], about, None)


@pytest.mark.slow
def test_a_page_shows_the_map_instead_of_images(half_planes: tuple[nn.Module, Examples]) -> None:
    contents = _contents(*half_planes)
    assert contents.failures == ()
    assert Contents.from_json(contents.to_json()) == contents
    text = render_page(contents)
    assert "The map" in text
    assert "Hardest and safest" not in text
    assert "reaches 0.5, 1 (l2)" in text
    assert "Map of 2 classes; 100.0 % of its points have a certified radius." in text


def test_a_map_that_fails_says_so_in_its_place(
    half_planes: tuple[nn.Module, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ArgumentError("No map today.")

    monkeypatch.setattr(gather, "plane", fails)
    text = render_page(_contents(*half_planes))
    assert "Plane could not be measured: No map today." in text
    assert "Hardest and safest" not in text


@pytest.mark.slow
def test_one_class_and_points_of_none_are_drawn(half_planes: tuple[nn.Module, Examples]) -> None:
    contents = _contents(*half_planes)
    assert contents.plane is not None
    count = len(contents.plane.predicted)
    alone = replace(contents.plane, predicted=(0,) * count, labels=(0,) * 4)
    for radii in (alone.radii, (math.inf,) * count, (0.0,) * count):
        assert "could not be drawn" not in render_page(replace(contents, plane=replace(alone, radii=radii)))
