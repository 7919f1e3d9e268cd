"""Figures: the one place that draws. Plain numbers in, files out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from lipkit.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by the colour-blind; lines differ by dash and marker too, so grey print works.
_LOOKS: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (6, 2)), "s"),
    ("#009E73", (0, (6, 2, 1, 2)), "^"),
    ("#CC79A7", (0, (1, 1.2)), "D"),
    ("#000000", (0, (3, 1.2)), "v"),
)
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
    """The house style, as matplotlib settings: quiet axes, and in an SVG text that stays text and no random names."""
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


def convergence(curves: Sequence[Curve], title: str, limit: tuple[str, float], stem: Path) -> tuple[Path, Path]:
    """Draws distance to the true norm against time, and writes `stem`.png and `stem`.svg.

    Two panels meet at the true norm: upper bounds fall towards it from above, lower bounds rise from below, both on
    logarithmic axes; what leaves a panel at the middle is closer than 1e-8. `limit` is a labelled distance above the
    truth that some methods end at. Curves of one label look alike.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for curve in curves))
    if len(labels) > len(_LOOKS):
        raise ArgumentError(f"The figure tells {len(_LOOKS)} methods apart, got {len(labels)}.")
    with mpl.rc_context(style()):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(8.0, 5.0))
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        figure.subplots_adjust(left=0.105, right=0.745, top=0.925, bottom=0.095, hspace=0.0)
        for curve in curves:
            _draw(top if curve.above else bottom, curve, _LOOKS[labels.index(curve.label)])
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
