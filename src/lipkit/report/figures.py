"""Figures: the one place that draws. Plain numbers in, files out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from lipkit.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by the colour-blind; lines differ by dash and marker too, so grey print works.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
_DASHES = ("-", (0, (6, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.5)), (0, (3, 1)), (0, (8, 3, 2, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_FLOOR, _CEILING = 1e-8, 4.0


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


def style() -> dict[str, Any]:
    """The house style, as matplotlib settings: quiet axes, text that stays text in an SVG, the same bytes every time."""
    return {
        "figure.dpi": 150,
        "savefig.dpi": 150,
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "axes.titlesize": 10.0,
        "axes.titlelocation": "left",
        "axes.titlepad": 10.0,
        "axes.labelsize": 9.0,
        "axes.linewidth": 0.8,
        "axes.edgecolor": "#444444",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.6,
        "lines.markersize": 5.0,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "lipkit",
    }


def convergence(curves: Sequence[Curve], title: str, stem: Path) -> tuple[Path, Path]:
    """Draws distance to the true norm against time, and writes `stem`.png and `stem`.svg.

    Two panels meet at the true norm: upper bounds fall towards it from above, lower bounds rise from below, both on
    logarithmic axes. What leaves a panel at the middle is closer than 1e-8.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(style()):
        figure = Figure(figsize=(8.0, 4.9), layout="constrained")
        figure.get_layout_engine().set(hspace=0.0, h_pad=0.02)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        top, bottom = figure.subplots(2, 1, sharex=True)
        looks = list(zip(_COLOURS, _DASHES, _MARKERS, strict=True))
        for number, curve in enumerate(curves):
            _draw(top if curve.above else bottom, curve, looks[number % len(looks)])
        _panel(top, "above it", "upper bounds", descending=False)
        _panel(bottom, "below it", "lower bounds", descending=True)
        top.set_title(title)
        bottom.set_xlabel("time for one norm (milliseconds)")
        bottom.set_xscale("log")
        figure.supylabel("relative distance to the true norm", fontsize=9.0)
        paths = stem.with_suffix(".png"), stem.with_suffix(".svg")
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _draw(axes: "Axes", curve: Curve, look: tuple[str, Any, str]) -> None:
    colour, dash, marker = look
    # Zero has no logarithm; what is far below the floor leaves the panel, as it should.
    sizes = [max(distance, 1e-16) for distance in curve.distances]
    face = colour if curve.above else "white"
    axes.plot(curve.milliseconds, sizes, color=colour, ls=dash, marker=marker, mfc=face, label=curve.label)


def _panel(axes: "Axes", where: str, heading: str, descending: bool) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*((_CEILING, _FLOOR) if descending else (_FLOOR, _CEILING)))
    axes.set_yticks([1.0, 1e-2, 1e-4, 1e-6], ["100 %", "1 %", "0.01 %", "1e-6"])
    axes.tick_params(axis="y", which="minor", left=False)
    axes.set_ylabel(where)
    # Outside of the data, so that no curve is hidden by its own explanation.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title=heading, alignment="left")
    axes.spines["bottom" if not descending else "top"].set(visible=True, linewidth=1.6, color="#000000")
