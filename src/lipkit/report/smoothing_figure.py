"""Certified accuracy of smoothed classifiers against the radius: several methods, each with its confidence band."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipkit.errors import ArgumentError
from lipkit.report.figure_style import LOOKS, sheet
from lipkit.report.results.smoothing_contents import MethodCurve

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

# Two more of Okabe and Ito's colours: there are more methods than a figure usually compares.
_LOOKS: tuple[tuple[str, Any, str], ...] = (
    *LOOKS,
    ("#E69F00", (0, (8, 1.5, 1, 1.5, 1, 1.5)), "P"),
    ("#56B4E9", (0, (2, 2)), "X"),
)


def draw_curves(curves: Sequence[MethodCurve], eps: Sequence[float], title: str, path: Path) -> Path:
    """Draws certified accuracy against the radius, and writes it to `path`, such as a .png or .svg; returns it.

    Markers stand at `eps`, where tables are read. Needs the extra `plot` (matplotlib).
    """
    with sheet(6.4, 4.4) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        plot_curves(axes, curves, eps, "length of the change in l2")
        axes.set_title(title)
        axes.legend(loc="upper right")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    return path


def plot_curves(axes: "Axes", curves: Sequence[MethodCurve], eps: Sequence[float], label: str) -> None:
    """One line for each method with its band, from 0 to where the last one ends; the first is drawn on top."""
    if not 1 <= len(curves) <= len(_LOOKS):
        raise ArgumentError(f"The figure tells 1 to {len(_LOOKS)} methods apart, got {len(curves)}.")
    for place, (one, (colour, dashes, marker)) in enumerate(zip(curves, _LOOKS, strict=False)):
        radii = [point.radius for point in one.curve]
        shares = [point.share for point in one.curve]
        over = 3.0 - place / 10
        low, high = [100 * share.low for share in shares], [100 * share.high for share in shares]
        axes.fill_between(radii, low, high, color=colour, alpha=0.06, lw=0, gid=f"band-{place}", zorder=over - 1)
        values = [100 * share.value for share in shares]
        axes.plot(radii, values, color=colour, ls=dashes, gid=f"curve-{place}", zorder=over)
        table = [100 * share.value for share in one.shares.certified]
        axes.plot(eps, table, color=colour, ls="", marker=marker, zorder=over, gid=f"table-{place}")
        # A line and a marker together, for the legend alone.
        axes.plot([], [], color=colour, ls=dashes, marker=marker, label=one.name)
    last = max(point.radius for one in curves for point in one.curve)
    axes.set_xlim(0, last * 1.02)
    axes.set_ylim(0, 102)
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(label)
    axes.set_ylabel("certified test images")
