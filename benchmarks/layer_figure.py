"""The figure of benchmarks/layers.py: how far the singular values are from one, against the time of a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lipkit.report.figure_style import LOOKS, sheet

if TYPE_CHECKING:
    from layers import Row

    from lipkit.report.figure_style import Axes


def draw(rows: Sequence["Row"], title: str, path: str) -> None:
    """Two panels, matrices and kernels: a disc for each layer of this library, a square for each of a peer."""
    bent = sorted((row for row in rows if "plain" not in row.family), key=lambda row: row.seconds)
    with sheet(9.0, 4.6) as figure:
        left, right = figure.subplots(1, 2)
        matrices = [row for row in bent if row.family.startswith("matrix")]
        _panel(left, matrices, [max(abs(v - 1) for v in row.values) for row in matrices])
        left.set(yscale="log", ylim=(4e-9, 4), title="Matrices", ylabel="farthest singular value: distance from 1")
        kernels = [row for row in bent if row.family.startswith("kernel")]
        _panel(right, kernels, [row.values[1] for row in kernels])
        right.set(title="3 x 3 kernels", ylabel="mean singular value", ylim=(0, 1))
        note = "disc: lipkit; square: peers; hollow: largest singular value above 1"
        figure.suptitle(f"{title}\n{note}", x=0.01, ha="left", fontsize=8.5)
        figure.subplots_adjust(left=0.08, right=0.98, top=0.84, bottom=0.38, wspace=0.2)
        figure.savefig(path)


def _panel(axes: "Axes", rows: Sequence["Row"], heights: Sequence[float]) -> None:
    """Marks numbered by their time, and the key below the axes."""
    axes.set(xscale="log", xlabel="milliseconds a step")
    axes.xaxis.set_minor_formatter("")
    for i, (row, height) in enumerate(zip(rows, heights, strict=True)):
        colour, _, marker = LOOKS[0 if row.name.startswith("lipkit") else 1]
        face = colour if row.values[0] <= 1 else "white"
        at = (row.seconds * 1e3, height)
        axes.plot(*at, marker, color=colour, markerfacecolor=face, markersize=6, zorder=3)
        # Neighbours in time are often neighbours in height: their numbers stand on four levels.
        above, far = i % 2 == 0, 9 * (i % 4 // 2)
        axes.annotate(
            str(i + 1),
            at,
            xytext=(0, 5 + far if above else -5 - far),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=7.5,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
        )
    key = [f"{i} {row.name.partition(' normalisation')[0]}" for i, row in enumerate(rows, 1)]
    half = -(-len(key) // 2)
    for column, x in ((key[:half], 0.0), (key[half:], 0.55)):
        axes.text(x, -0.27, "\n".join(column), transform=axes.transAxes, va="top", fontsize=7, linespacing=1.3)
