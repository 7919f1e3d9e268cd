"""The drawings of a page: plain data in, <svg> elements out."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from lipkit.bound import Kind
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.certify.evaluate.proportion import percent
from lipkit.report.figure_style import INK, LOOKS, Paper, drawing, inline
from lipkit.report.results.contents import Contents, DepthRow, Entry, Histogram, Plane, Spectrum

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

# Inches: heights of drawings that fill the page's column, wide and narrow, and the size of a small one.
TALL, FLAT = {Paper.WIDE: 3.7, Paper.NARROW: 3.1}, {Paper.WIDE: 2.7, Paper.NARROW: 2.4}
_SMALL = (2.5, 1.75)
# The height of a map is between these parts of its width.
_LOW_MAP, _HIGH_MAP = 0.3, {Paper.WIDE: 0.8, Paper.NARROW: 1.5}
# Values whose ratio is above this are drawn on a logarithmic axis.
_DECADES = 20.0
# Unlimited radii are drawn as this one.
_FAR = 1e6
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def accuracy(contents: Contents, paper: Paper = Paper.WIDE) -> str:
    """Certified accuracy against the radius with its band, and above it what the attack left standing."""
    radii = [point.radius for point in contents.curve]
    shares = [point.share for point in contents.curve]
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        colour, _, marker = LOOKS[0]
        axes.fill_between(
            radii, [100 * s.low for s in shares], [100 * s.high for s in shares], color=colour, alpha=0.2, lw=0,
            gid="band",
        )  # fmt: skip
        axes.plot(radii, [100 * s.value for s in shares], color=colour, label="certified (proven)", gid="certified")
        table = [100 * share.value for share in contents.overall.certified]
        axes.plot(contents.eps, table, ls="", marker=marker, color=colour, gid="certified-table")
        if contents.overall.attacked is not None:
            _draw_attacked(axes, contents)
        clean = 100 * contents.overall.clean.value
        axes.axhline(clean, color=INK, lw=0.9, ls=(0, (1, 1.5)), label="clean", gid="clean")
        axes.set_xlim(0, max(radii[-1], *contents.eps, 0.0) * 1.02)
        axes.set_ylim(0, 102)
        axes.yaxis.set_major_formatter("{x:g} %")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(f"length of the change in l{contents.p:g}")
        axes.set_ylabel("correct test samples")
        # Above the curves, so that none is hidden by its own explanation.
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, columnspacing=1.2, borderaxespad=0.0)
        return inline(
            figure,
            drawing_id("accuracy", paper),
            "Certified accuracy against the length of the change. " + _describe_shares(contents),
        )


def _draw_attacked(axes: "Axes", contents: Contents) -> None:
    colour, dashes, marker = LOOKS[1]
    known = contents.overall.attacked
    assert known is not None
    values = [100 * share.value for share in known]
    # Shares that count all or none of few samples lie at the very end of their interval, up to rounding.
    ends = (
        [max(0.0, 100 * (share.value - share.low)) for share in known],
        [max(0.0, 100 * (share.high - share.value)) for share in known],
    )
    axes.errorbar(contents.eps, values, ends, color=colour, lw=0, elinewidth=0.9, capsize=2.5)
    axes.plot(contents.eps, values, color=colour, ls=dashes, marker=marker, label="attacked", gid="attacked")


def _describe_shares(contents: Contents) -> str:
    attacked = contents.overall.attacked or (None,) * len(contents.eps)
    rows = [
        f"At {said_radius(eps)}: {sure.counted()} certified"
        + (f", {left.counted(Kind.UPPER)} attacked" if left else "")
        for eps, sure, left in zip(contents.eps, contents.overall.certified, attacked, strict=True)
    ]
    return "; ".join(rows) + "."


def radii(histogram: Histogram, p: float, paper: Paper = Paper.WIDE) -> str:
    """The histogram of certified radii of correctly classified samples."""
    with drawing(paper.inches, FLAT[paper]) as (figure, axes):
        widths = [b - a for a, b in zip(histogram.edges, histogram.edges[1:], strict=False)]
        bars = axes.bar(
            histogram.edges[:-1], histogram.counts, widths, align="edge", color=LOOKS[0][0], edgecolor=INK, lw=0.5,
            alpha=0.75,
        )  # fmt: skip
        for i, bar in enumerate(bars):
            bar.set_gid(f"bar-{i}")
        axes.set_xlim(0, histogram.edges[-1])
        axes.set_ylim(0, max(1, *histogram.counts) * 1.08)
        axes.locator_params(axis="y", integer=True)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(f"certified radius in l{p:g}")
        axes.set_ylabel("test samples")
        most = max(range(len(histogram.counts)), key=histogram.counts.__getitem__)
        between = f"{histogram.edges[most]:.3g} and {histogram.edges[most + 1]:.3g}"
        label = f"Histogram of certified radii; most samples, {histogram.counts[most]}, lie between {between}."
        return inline(figure, drawing_id("radii", paper), label)


def spectrum(one: Spectrum, number: int, top: float) -> str:
    """The singular values of one layer, largest first; `top` is where the axis of all layers ends."""
    with drawing(*_SMALL) as (figure, axes):
        count = len(one.values)
        share = [100 * i / max(1, count - 1) for i in range(count)]
        colour, dashes, marker = LOOKS[0] if one.kind.certifies else LOOKS[1]
        axes.plot(
            share, one.values, color=colour, ls=dashes, gid="values", marker=marker, markevery=max(1, count // 6), ms=3
        )
        axes.set_xlim(-2, 102)
        axes.set_ylim(0, top * 1.06)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_major_formatter("{x:g} %")
        axes.set_xticks([0, 50, 100])
        label = f"{one.total} singular values of {one.name}, from {one.values[0]:.4g} down to {one.values[-1]:.4g}."
        return inline(figure, f"spectrum-{number}", label)


def plane(found: Plane, eps: Sequence[float], classes: Sequence[str], paper: Paper = Paper.WIDE) -> str:
    """The map of a classifier of the plane."""
    # As high as the map is for its width, between a flat and a tall figure, with room for the legend and the numbers.
    tall = (found.up[-1] - found.up[0]) / (found.across[-1] - found.across[0])
    shape = min(max(tall, _LOW_MAP), _HIGH_MAP[paper])
    with drawing(paper.inches, 0.6 + (paper.inches - 0.6) * shape) as (figure, axes):
        draw_map(axes, found, eps, classes)
        sure = Fraction(sum(radius > 0 for radius in found.radii), len(found.radii))
        label = f"Map of {len(classes)} classes; {percent(sure, Kind.LOWER)} of its points have a certified radius."
        return inline(figure, drawing_id("plane", paper), label)


def draw_map(axes: "Axes", found: Plane, eps: Sequence[float], classes: Sequence[str]) -> None:
    """Draws the classes of a map with the lines between them, those of equal certified radius, and test points."""
    shape = len(found.up), len(found.across)
    said, radii = np.reshape(found.predicted, shape), np.reshape(found.radii, shape)
    for k in range(len(classes)):
        # Radii fall to 0 at the decision, so with a sign they cross it there: a line without the steps of the grid.
        inside = np.where(said == k, 1.0, -1.0) * np.minimum(radii, _FAR)
        if inside.min() < 0 <= inside.max():
            axes.contourf(found.across, found.up, inside, (0, np.inf), colors=LOOKS[k % len(LOOKS)][0], alpha=0.22)
            axes.contour(found.across, found.up, inside, (0,), colors=INK, linewidths=1.6)
        elif inside.min() >= 0:
            axes.axhspan(found.up[0], found.up[-1], color=LOOKS[k % len(LOOKS)][0], alpha=0.22, lw=0)
    reached = [e for e in eps if e < radii.max()]
    if reached:
        axes.contour(found.across, found.up, radii, reached, colors=INK, linewidths=0.6)
    for k, name in enumerate(classes):
        some = [point for point, label in zip(found.points, found.labels, strict=True) if label == k]
        colour, _, marker = LOOKS[k % len(LOOKS)]
        across, up = zip(*some, strict=True) if some else ((), ())
        axes.plot(across, up, ls="", marker=marker, ms=2.2, color=colour, label=str(name), gid=f"class-{k}")
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, columnspacing=1.2, borderaxespad=0.0)


def depth(rows: Sequence[DepthRow], paper: Paper = Paper.WIDE) -> str:
    """Gradient norms after each module: mean, median, and the band of the quantiles."""
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        places = list(range(len(rows)))
        colour, dashes, marker = LOOKS[2]
        height = _scale_axis(axes, [value for r in rows for value in (r.low, r.median, r.mean, r.high)])
        low, high = [height(r.low) for r in rows], [height(r.high) for r in rows]
        median, mean = [height(r.median) for r in rows], [height(r.mean) for r in rows]
        axes.fill_between(places, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(places, median, color=colour, ls=dashes, marker=marker, label="median", gid="median")
        axes.plot(places, mean, color=INK, ls=(0, (1, 1.2)), label="mean", gid="mean")
        step = max(1, math.ceil(len(rows) / 16))
        turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(places[::step], [r.name for r in rows][::step], **turned)
        axes.set_xlim(-0.3, max(len(rows) - 0.7, 0.3))
        axes.set_xlabel("module, from the input to the logits")
        axes.set_ylabel("length of the gradient")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.0)
        first, last = rows[0], rows[-1]
        ends = f"{first.median:.3g} at {first.name}, {last.median:.3g} at {last.name}"
        return inline(figure, drawing_id("depth", paper), f"Median length of the loss gradient by module: {ends}.")


def training(
    entries: Sequence[Entry], name: str, label: str, of: Callable[[Entry], float | None], paper: Paper = Paper.WIDE
) -> str:
    """One number of the journal over the steps; values that are not finite are left out."""
    known = [(entry.step, value) for entry in entries if (value := of(entry)) is not None and math.isfinite(value)]
    with drawing(paper.inches, FLAT[paper]) as (figure, axes):
        values = [value for _, value in known]
        height = _scale_axis(axes, values)
        colour, dashes, marker = LOOKS[0] if name == "loss" else LOOKS[1]
        line = {"marker": marker, "ms": 3.0} if len(known) < 40 else {}
        axes.plot([step for step, _ in known], [*map(height, values)], color=colour, ls=dashes, gid=name, **line)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        said = f"{label} over training: {values[0]:.4g} at first, {values[-1]:.4g} at last."
        return inline(figure, drawing_id(name, paper), said)


def drawing_id(name: str, paper: Paper) -> str:
    """Both drawings of one thing are on the page, and ids are unique there."""
    return name if paper is Paper.WIDE else f"{name}-{paper.value}"


def _scale_axis(axes: "Axes", values: Sequence[float]) -> Callable[[float], float]:
    """Prepares the vertical axis for `values`, and gives the height of a value on it.

    Positive values over decades have the height of their logarithm: matplotlib's own logarithmic axis overflows near
    the ends of float64, where constants of untrained networks are.
    """
    low, high = min(values), max(values)
    if low > 0 and high > low * _DECADES:
        axes.locator_params(axis="y", integer=True)
        axes.yaxis.set_major_formatter(lambda exponent, _: power_of_ten(round(exponent)))
        axes.margins(y=0.08)
        return math.log10
    if low >= 0:
        axes.set_ylim(0, high * 1.08 or 1.0)
    axes.yaxis.set_major_formatter("{x:g}")
    return float


def power_of_ten(exponent: int) -> str:
    """A power of ten as the label of an axis."""
    return f"{10.0**exponent:g}" if abs(exponent) <= 3 else f"10{str(exponent).translate(_RAISED)}"
