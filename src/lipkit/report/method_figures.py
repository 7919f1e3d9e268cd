"""Figures of methods and their time. Plain numbers in, files out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.report.figure_style import LOOKS, sheet
from lipkit.report.figure_style import style as style
from lipkit.report.html.numbers import digits

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

_FLOOR, _CEILING = 1e-8, 4.0
# Marker and filling of each kind: an upper bound points down to the truth, a lower one up.
_MARKERS = {
    Kind.EXACT: ("D", "#000000"),
    Kind.UPPER: ("v", "#0072B2"),
    Kind.LOWER: ("^", "white"),
    Kind.ESTIMATE: ("x", "#D55E00"),
}
# Values whose ratio is above this are drawn on a logarithmic axis.
_DECADES = 8.0
# In parts of a panel: the distance of two names, and the height of its heading.
_LINE, _TOP = 0.066, 1.06


@final
@dataclass(frozen=True)
class Curve:
    """How one method nears the true norm from one side: the time of each run and the relative distance it left."""

    label: str
    milliseconds: tuple[float, ...]
    distances: tuple[float, ...]
    above: bool

    def __post_init__(self) -> None:
        if not self.distances or len(self.milliseconds) != len(self.distances):
            raise ArgumentError(
                f"The curve {self.label!r} needs as many times as distances, and at least one; "
                f"got {len(self.milliseconds)} and {len(self.distances)}."
            )
        if min(self.distances) < 0 or min(self.milliseconds) <= 0:
            raise ArgumentError(f"The curve {self.label!r} needs distances >= 0 and times > 0; its side is `above`.")


@final
@dataclass(frozen=True)
class Point:
    """The result of one method: a number > 0, the kind that says what it proves, and the seconds it took."""

    label: str
    seconds: float
    value: float
    kind: Kind

    def __post_init__(self) -> None:
        if not (0 < self.seconds < math.inf and 0 < self.value < math.inf):
            raise ArgumentError(
                f"The point {self.label!r} needs finite seconds > 0 and a finite value > 0, "
                f"got {self.seconds} and {self.value}."
            )


@final
@dataclass(frozen=True)
class Panel:
    """Points that speak of one constant, below a heading."""

    heading: str
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ArgumentError(f"The panel {self.heading!r} needs at least one point, got none.")

    @property
    def between(self) -> tuple[float, float] | None:
        """The best lower and the best upper bound, where there are both: the true constant lies between them."""
        above = [point.value for point in self.points if point.kind.certifies]
        below = [point.value for point in self.points if point.kind is Kind.LOWER]
        return (max(below), min(above)) if above and below else None


def convergence(curves: Sequence[Curve], title: str, limit: tuple[str, float], stem: Path) -> tuple[Path, Path]:
    """Draws distance to the true norm against time, and writes `stem`.png and `stem`.svg.

    Two panels meet at the true norm: upper bounds fall towards it from above, lower bounds rise from below, both on
    logarithmic axes; what leaves a panel at the middle is closer than 1e-8. `limit` is a labelled distance above the
    truth that some methods end at. Curves of one label look alike.
    """
    labels = list(dict.fromkeys(curve.label for curve in curves))
    if len(labels) > len(LOOKS):
        raise ArgumentError(f"The figure tells {len(LOOKS)} methods apart, got {len(labels)}.")
    with sheet(8.0, 5.0) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        figure.subplots_adjust(left=0.105, right=0.745, top=0.925, bottom=0.095, hspace=0.0)
        for curve in curves:
            _draw(top if curve.above else bottom, curve, LOOKS[labels.index(curve.label)])
        top.axhline(limit[1], color="#777777", linewidth=1.0, linestyle=(0, (1, 1)), zorder=1, label=limit[0])
        _panel(top, "upper bounds", above=True)
        _panel(bottom, "lower bounds", above=False)
        top.set_title(title)
        bottom.set_xscale("log")
        bottom.xaxis.set_major_formatter("{x:g}")
        bottom.set_xlabel("processor time for one norm (milliseconds, one thread)")
        figure.supylabel("relative distance to the true norm", x=0.012, fontsize=9.0)
        paths = stem.with_suffix(".png"), stem.with_suffix(".svg")
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def ladder(panels: Sequence[Panel], title: str, stem: Path, one_scale: bool = False) -> tuple[Path, Path]:
    """Draws the values that methods found against their time, and writes `stem`.png and `stem`.svg.

    One panel below the other on a common logarithmic axis of time, and of values with `one_scale`. The best lower bound
    is a line, and the true constant lies in the shaded band between it and the lowest upper bound. The marker tells the
    kind; names stand to the right in the order of the values, each joined to its point, with the value rounded so that
    what is printed is true.
    """
    if not panels:
        raise ArgumentError("A ladder needs at least one panel, got none.")
    height = 0.9 + 2.9 * len(panels)
    with sheet(8.0, height) as figure:
        rows = figure.subplots(len(panels), 1, sharex=True, sharey=one_scale, squeeze=False)[:, 0]
        figure.subplots_adjust(left=0.105, right=0.66, top=1 - 0.65 / height, bottom=0.5 / height, hspace=0.2)
        seconds = [point.seconds for panel in panels for point in panel.points]
        rows[-1].set_xscale("log")
        rows[-1].set_xlim(min(seconds) / 1.6, max(seconds) * 1.6)
        rows[-1].xaxis.set_major_formatter("{x:g}")
        rows[-1].set_xlabel("processor time (seconds, one thread)")
        for axes, panel in zip(rows, panels, strict=True):
            _scale(axes, [point.value for one in (panels if one_scale else [panel]) for point in one.points])
            _rungs(axes, panel)
        handles = {
            label: handle for axes in rows for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="lower left",
            bbox_to_anchor=(0.66, 0.0),
            ncols=2,
            fontsize=8.0,
            handlelength=1.4,
            columnspacing=1.2,
        )
        figure.supylabel("Lipschitz constant", x=0.012, y=0.5, fontsize=9.0)
        figure.suptitle(title, x=0.105, y=1 - 0.12 / height, ha="left", va="top", fontsize=10.0)
        paths = stem.with_suffix(".png"), stem.with_suffix(".svg")
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _scale(axes: "Axes", values: Sequence[float]) -> None:
    """Room above and below the values, so that no marker is cut."""
    low, high = min(values), max(values)
    if high / low > _DECADES:
        axes.set_yscale("log")
        axes.set_ylim(low / (high / low) ** 0.08, high * (high / low) ** 0.08)
        return
    room = 0.08 * (high - low) + 0.02 * high
    axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_formatter("{x:g}")


def _rungs(axes: "Axes", panel: Panel) -> None:
    axes.set_title(panel.heading, fontsize=9.0, pad=4.0)
    if panel.between is not None:
        lower, upper = panel.between
        axes.axhspan(
            min(lower, upper), max(lower, upper), color="#e8e8e8", linewidth=0, zorder=0, label="the truth is here"
        )
        axes.axhline(lower, color="#444444", linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    for kind, (marker, face) in _MARKERS.items():
        chosen = [point for point in panel.points if point.kind is kind]
        where = [point.seconds for point in chosen], [point.value for point in chosen]
        edge = "#0072B2" if kind is Kind.UPPER else "#000000" if kind is not Kind.ESTIMATE else face
        if chosen:
            axes.plot(*where, ls="", marker=marker, mfc=face, mec=edge, ms=6.5, label=kind.value, zorder=3)
    _names(axes, panel)


def _names(axes: "Axes", panel: Panel) -> None:
    """The names to the right, moved apart where values are near each other, with a thin line to each point."""
    points = sorted(panel.points, key=lambda point: (point.value, -point.seconds))
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((p.seconds, p.value)))[1] for p in points]
    for point, y in zip(points, _apart(heights, _LINE), strict=True):
        axes.annotate(
            f"{point.label}  {digits(point.value, point.kind)}",
            (point.seconds, point.value),
            (1.06, y),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": "#999999",
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved as little as possible, in squares: neighbours end `gap` apart, none above the heading.

    Less i * gap they have to be non-decreasing: isotonic regression, by pooling neighbours that are not.
    """
    pools: list[tuple[float, int]] = []
    for i, height in enumerate(heights):
        mean, count = height - i * gap, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean, count = (mean * count + before * members) / (count + members), count + members
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    top = _TOP - (len(flat) - 1) * gap
    return [min(low, top) + i * gap for i, low in enumerate(flat)]


def _draw(axes: "Axes", curve: Curve, look: tuple[str, Any, str]) -> None:
    colour, dash, marker = look
    # Zero has no logarithm; what is below the floor leaves the panel, far enough to take its marker along.
    sizes = [distance if distance >= _FLOOR else _FLOOR / 30 for distance in curve.distances]
    face = colour if curve.above else "white"
    axes.plot(curve.milliseconds, sizes, color=colour, ls=dash, marker=marker, mfc=face, label=curve.label)


def _panel(axes: "Axes", heading: str, above: bool) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*((_FLOOR, _CEILING) if above else (_CEILING, _FLOOR)))
    axes.set_yticks([1.0, 1e-2, 1e-4, 1e-6], ["1", "$10^{-2}$", "$10^{-4}$", "$10^{-6}$"])
    axes.tick_params(axis="y", which="minor", left=False)
    # Outside of the data, so that no curve is hidden by its own explanation.
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title=heading, alignment="left", handlelength=3.4)
    if above:
        axes.spines["bottom"].set(linewidth=1.8, color="#000000")
        axes.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
        axes.annotate("true norm", (1.0, 0.0), (8, 0), "axes fraction", "offset points", va="center", weight="bold")
