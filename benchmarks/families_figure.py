"""The figure of benchmarks/families.py: four columns, one line for each family."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lipkit.report.figure_style import LOOKS, sheet

if TYPE_CHECKING:
    from families import Row

    from lipkit.report.figure_style import Axes

# What a gradient has lost below this is not told apart.
_LEAST = 1e-8
_COLUMNS: tuple[tuple[str, str, Callable[["Row"], float]], ...] = (
    ("Tightness", "gradient kept by 10 layers", lambda row: max(row.kept, _LEAST)),
    ("Time", "step, times a plain layer", lambda row: row.time),
    ("Memory", "step, times a plain layer", lambda row: row.memory),
)


def draw(rows: Sequence["Row"], path: Path) -> None:
    """Kernels above, matrices below; colour and marker say what a family promises."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    looks = {kind: (LOOKS[i][0], LOOKS[i][2]) for i, kind in enumerate(kinds)}
    groups = [[row for row in rows if row.dense == dense] for dense in (False, True)]
    with sheet(11.0, 9.6) as figure:
        panels = figure.subplots(2, 4, height_ratios=[len(group) for group in groups])
        for line, group, what in zip(panels, groups, ("Convolutions 3 x 3", "Dense layers"), strict=True):
            for axes, (title, unit, value) in zip(line, _COLUMNS, strict=False):
                for place, row in enumerate(group):
                    colour, marker = looks[row.kind]
                    axes.plot(value(row), place, marker, color=colour, markersize=8)
                axes.set(xscale="log", xlabel=unit, title=title)
            line[0].set(xlim=(_LEAST / 4, 5), xticks=[1e-8, 1e-6, 1e-4, 1e-2, 1])
            line[0].set_xticklabels(["≤1e-8", "1e-6", "1e-4", "0.01", "1"])
            for axes in line[1:3]:
                axes.set(xlim=(0.7, 500), xticks=[1, 10, 100])
                axes.set_xticklabels(["1", "10", "100"])
            for axes in line[:3]:
                axes.minorticks_off()
            _learned(line[3], group, looks)
            for axes in line:
                axes.set(ylim=(len(group) - 0.4, -0.6), yticks=range(len(group)), yticklabels=[])
                axes.tick_params(axis="y", length=0)
            line[0].set_yticklabels([row.name for row in group], fontsize=10)
            line[0].text(-0.72, 1.035, what, transform=line[0].transAxes, fontsize=10, fontweight="bold")
        from matplotlib.lines import Line2D

        marks = [
            Line2D([], [], color=colour, marker=marker, linestyle="", markersize=8, label=kind)
            for kind, (colour, marker) in looks.items()
        ]
        figure.legend(handles=marks, loc="upper left", ncols=len(marks), bbox_to_anchor=(0.005, 0.995), fontsize=10)
        figure.subplots_adjust(left=0.145, right=0.985, top=0.905, bottom=0.06, wspace=0.09, hspace=0.27)
        figure.savefig(path)


def _learned(axes: "Axes", rows: Sequence["Row"], looks: dict[str, tuple[str, str]]) -> None:
    """Certified accuracy: a full mark with four layers, a hollow one with ten, and a line from one to the other."""
    for place, row in enumerate(rows):
        colour, marker = looks[row.kind]
        few, many = row.certified
        axes.plot([few, many], [place, place], "-", color=colour, linewidth=1.2)
        axes.plot(many, place, marker, color=colour, markerfacecolor="white", markersize=8)
        axes.plot(few, place, marker, color=colour, markersize=8)
    axes.set(title="Expressivity", xlabel="% certified; full: 4 layers, hollow: 10", xlim=(-4, 75))
