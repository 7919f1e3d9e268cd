"""Drawings of a detector of anomalies: certified AUROC, scores, and the health of its training."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lipkit.report.figure_style import INK, LOOKS, Paper, drawing, inline
from lipkit.report.html.charts import FLAT, TALL, drawing_id
from lipkit.report.results.anomaly_contents import AnomalyContents, CertifiedAuroc, Labelled
from lipkit.sdf.one_class import Health

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

# Who moves, as a page says it, and the number that belongs to it.
ATTACKERS: tuple[tuple[str, Callable[[CertifiedAuroc], float]], ...] = (
    ("both kinds of rows", lambda one: one.both),
    ("anomalies alone", lambda one: one.anomalies),
    ("normal rows alone", lambda one: one.normals),
)


def auroc(found: Labelled, paper: Paper) -> str:
    """Certified AUROC against the length of the moves, a line for each attacker."""
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        radii = [one.radius for one in found.curve]
        for i, (name, of) in enumerate(ATTACKERS):
            colour, dashes, marker = LOOKS[i]
            values = [100 * of(one) for one in found.curve]
            # One attacker alone reaches the same bound, whichever kind of rows it is.
            axes.plot(radii, values, color=colour, ls=dashes, label=name, gid=f"auroc-{i}", lw=2.4 if i == 1 else 1.6)
            points = [100 * of(one) for one in found.table]
            axes.plot([one.radius for one in found.table], points, ls="", marker=marker, color=colour)
        axes.set_xlim(0, radii[-1] * 1.02)
        axes.set_ylim(0, 102)
        axes.yaxis.set_major_formatter("{x:g} %")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("length of each move in l2, in units of the data")
        axes.set_ylabel("AUROC, at least")
        _place_legend(axes, 3 if paper is Paper.WIDE else 1)
        said = "; ".join(f"at {one.radius:g} {100 * one.both:.1f} %" for one in found.table)
        return inline(figure, drawing_id("auroc", paper), f"Certified AUROC if both kinds of rows move: {said}.")


def scores(contents: AnomalyContents, paper: Paper) -> str:
    """The histogram of scores of each kind of rows, one above the other, and the threshold."""
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        edges = contents.edges
        widths = [b - a for a, b in pairwise(edges)]
        floor = [0] * len(widths)
        for i, kind in enumerate(contents.bars):
            look = {"color": LOOKS[(2, 0, 1)[i]][0], "edgecolor": INK, "hatch": (None, None, "////")[i]}
            axes.bar(edges[:-1], kind.counts, widths, floor, align="edge", lw=0.4, alpha=0.75, label=kind.name, **look)
            floor = [a + b for a, b in zip(floor, kind.counts, strict=True)]
        axes.axvline(contents.threshold, color=INK, lw=1.2, ls=(0, (3, 2)), label="threshold", gid="threshold")
        axes.grid(visible=False, axis="x")
        axes.locator_params(axis="y", integer=True)
        axes.set_ylim(0, max(1, *floor) * 1.06)
        axes.set_xlabel("score")
        axes.set_ylabel("rows")
        _place_legend(axes, 2 if paper is Paper.WIDE else 1)
        said = f"{contents.below} of {contents.rows} rows score below the threshold {contents.threshold:.4g}."
        return inline(figure, drawing_id("scores", paper), f"Histogram of scores; {said}")


def health(
    entries: Sequence[Health], name: str, label: str, of: Sequence[tuple[str, Callable[[Health], float]]], paper: Paper
) -> str:
    """Some numbers of the training over its steps; values that are not finite are left out."""
    with drawing(paper.inches, FLAT[paper]) as (figure, axes):
        ends: list[str] = []
        for (what, value), (colour, dashes, marker) in zip(of, LOOKS, strict=False):
            known = [(one.step, value(one)) for one in entries if math.isfinite(value(one))]
            if not known:
                continue
            axes.plot(*zip(*known, strict=True), color=colour, ls=dashes, marker=marker, ms=3, label=what)
            ends.append(f"{what} {known[-1][1]:.3g}")
        axes.locator_params(axis="x", integer=True)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        _place_legend(axes, len(of) if paper is Paper.WIDE else 1)
        return inline(figure, drawing_id(name, paper), f"{label} over training; at last {', '.join(ends)}.")


def _place_legend(axes: "Axes", columns: int) -> None:
    """Above the drawing, so that nothing is hidden by its own explanation."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.2, borderaxespad=0.0)
