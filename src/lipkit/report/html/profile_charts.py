"""The drawings of a profile: how norms, the constant, its causes, gaps and singular values moved in training."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipkit.analysis import Phases
from lipkit.analysis.dynamics.stored_history import StoredHistory, StoredLayer, StoredSpectra
from lipkit.report.figure_style import FAINT, INK, LOOKS, Paper, drawing, inline, page_style, sheet
from lipkit.report.html.charts import FLAT, TALL, drawing_id, power_of_ten

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

# Layers whose singular values are drawn, columns and rows of one such map, and the least gap that is told from 0.
_MAPS, _COLUMNS, _BINS, _NO_GAP = 4, 120, 48, 1e-6
# Inches of a map with the strip below it.
_MAP = {Paper.WIDE: 2.6, Paper.NARROW: 2.5}
# The name of each cause in the record, in words, and its colour.
CAUSES = (
    ("drift", "drift (gradient)", LOOKS[0][0]),
    ("curvature", "curvature", LOOKS[1][0]),
    ("decay", "weight decay", LOOKS[2][0]),
    ("rest", "rest", LOOKS[3][0]),
)


def moved_most(layers: Sequence[StoredLayer], most: int) -> list[StoredLayer]:
    """The layers whose norm changed by the largest factors, in the order of the network."""
    by_change = sorted(range(len(layers)), key=lambda i: -abs(math.log(layers[i].norm[-1] / layers[i].norm[0])))
    return [layers[i] for i in sorted(by_change[:most])]


def log_norms(history: StoredHistory, paper: Paper = Paper.WIDE) -> str:
    """log of the norm of each layer over the steps; those that moved little are grey."""
    shown = moved_most(history.layers, len(LOOKS))
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        for layer in history.layers:
            if layer not in shown:
                axes.plot(history.steps, [*map(math.log, layer.norm)], color=FAINT, lw=1.0)
        for layer, (colour, dashes, _) in zip(shown, LOOKS, strict=False):
            axes.plot(history.steps, [*map(math.log, layer.norm)], color=colour, ls=dashes, label=layer.name)
        _finish(axes, "log of the norm", paper)
        ends = "; ".join(f"{one.name} from {one.norm[0]:.4g} to {one.norm[-1]:.4g}" for one in shown)
        return inline(figure, drawing_id("log-norms", paper), f"Norms of layers over training: {ends}.")


def log_constant(history: StoredHistory, paper: Paper = Paper.WIDE) -> str:
    """log K as it is measured, and as the trackers carry it."""
    lines = (
        (history.log_constant, "measured"),
        (history.realised, "tracked"),
        (history.expected, "model of SGD"),
        (history.sampled, "one draw of it"),
    )
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        for (values, name), (colour, dashes, _) in zip(lines, LOOKS, strict=False):
            if values is not None:
                axes.plot(history.steps, values, color=colour, ls=dashes, label=name)
        _finish(axes, "log K", paper)
        first, last = history.log_constant[0], history.log_constant[-1]
        label = f"log K over training: {first:.4g} at first, {last:.4g} at last; tracked {history.realised[-1]:.4g}."
        return inline(figure, drawing_id("log-constant", paper), label)


def causes(history: StoredHistory, paper: Paper = Paper.WIDE) -> str:
    """The change of log K since the start, stacked by cause: growth above zero, shrinkage below."""
    with drawing(paper.inches, TALL[paper]) as (figure, axes):
        above = below = np.zeros(len(history.steps))
        said: list[str] = []
        for name, words, colour in CAUSES:
            total = cumulative(history, name)
            up, down = above + total.clip(min=0), below + total.clip(max=0)
            axes.fill_between(history.steps, above, up, color=colour, alpha=0.45, lw=0, label=words, gid=name)
            axes.fill_between(history.steps, below, down, color=colour, alpha=0.45, lw=0)
            above, below = up, down
            said.append(f"{words} {total[-1]:+.3g}")
        change = np.asarray(history.log_constant) - history.log_constant[0]
        axes.plot(history.steps, change, color=INK, lw=1.4, label="in all", gid="total")
        axes.axhline(0, color=INK, lw=0.7)
        _finish(axes, "change of log K", paper)
        label = f"Causes of the change of log K: {', '.join(said)}; in all {change[-1]:+.3g}."
        return inline(figure, drawing_id("causes", paper), label)


def cumulative(history: StoredHistory, cause: str) -> np.ndarray:
    """What one cause added to log K up to each recorded step, over all layers, each by its share in log K.

    Shares are means of those at both ends of an interval. What that leaves open is in the rest, so that all causes
    together are the change of log K.
    """
    if cause == "rest":
        others = sum(cumulative(history, name) for name, _, _ in CAUSES if name != "rest")
        return np.asarray(history.log_constant) - history.log_constant[0] - others
    added = np.sum([_shares(layer) * getattr(layer, cause) for layer in history.layers], axis=0)
    return np.concatenate([[0.0], np.cumsum(added)])


def growth(layer: StoredLayer) -> float:
    """What a layer added to log K over all steps, by its share."""
    return float(np.sum(_shares(layer) * np.diff(np.log(layer.norm))))


def _shares(layer: StoredLayer) -> np.ndarray:
    """The share of a layer in log K in each interval; 1 where it is not known."""
    if layer.share is None:
        return np.ones(len(layer.norm) - 1)
    return (np.asarray(layer.share[1:]) + np.asarray(layer.share[:-1])) / 2


def gaps(history: StoredHistory, paper: Paper = Paper.WIDE) -> str:
    """The gap of each layer as a part of its norm, with a mark where a step was larger than the series allows."""
    shown = moved_most([layer for layer in history.layers if layer.gap is not None], len(LOOKS))
    with drawing(paper.inches, FLAT[paper]) as (figure, axes):
        lowest, highest = 0.0, 0.0
        for layer, (colour, dashes, marker) in zip(shown, LOOKS, strict=False):
            assert layer.gap is not None
            parts = [math.log10(max(gap / norm, _NO_GAP)) for gap, norm in zip(layer.gap, layer.norm, strict=True)]
            axes.plot(history.steps, parts, color=colour, ls=dashes, label=layer.name)
            crossed = [i for i, count in enumerate(layer.crossings) if count]
            places = [history.steps[i] for i in crossed]
            axes.plot(places, [parts[i] for i in crossed], ls="", marker=marker, ms=4.5, mfc="none", color=colour)
            lowest, highest = min(lowest, *parts), max(highest, *parts)
        ticks = range(math.floor(lowest), math.ceil(highest) + 1)
        axes.set_yticks(ticks, [power_of_ten(exponent) for exponent in ticks])
        axes.set_ylim(ticks[0] - 0.1, ticks[-1] + 0.1)
        _finish(axes, "gap / norm", paper)
        many = sum(map(sum, (layer.crossings for layer in history.layers)))
        return inline(figure, drawing_id("gaps", paper), f"Gaps of {len(shown)} layers; {many} crossings in all.")


def growth_by_phase(found: Phases, paper: Paper = Paper.WIDE) -> str:
    """Growth of log K a step by drift, above, and by noise, below on a logarithmic axis, as moving averages."""
    rows = (found.drift.tolist(), found.curvature.tolist(), found.diffusion.tolist())
    steps, (drift, curvature, diffusion) = found.steps.tolist(), rows
    with sheet(paper.inches, 2 * FLAT[paper], page_style()) as figure:
        figure.set_layout_engine("constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.axhline(0, color=INK, lw=0.7)
        upper.plot(steps, drift, color=LOOKS[0][0], label="drift")
        _finish(upper, "growth a step", paper)
        upper.set_xlabel("")
        for name, values, (colour, dashes, _) in zip(
            ("curvature of noise (kappa)", "diffusion (lambda²)"), (curvature, diffusion), LOOKS[1:], strict=False
        ):
            shown = [(step, math.log10(value)) for step, value in zip(steps, values, strict=True) if value > 0]
            lower.plot([x for x, _ in shown], [y for _, y in shown], color=colour, ls=dashes, label=name)
        low, high = lower.get_ylim()
        ticks = range(math.floor(low), math.ceil(high) + 1)
        lower.set_yticks(ticks, [power_of_ten(exponent) for exponent in ticks])
        _finish(lower, "noise a step", paper)
        label = (
            f"Growth of log K a step at the end: drift {drift[-1]:.3g}, curvature of noise {curvature[-1]:.3g}, "
            f"diffusion {diffusion[-1]:.3g}."
        )
        return inline(figure, drawing_id("phases", paper), label)


def with_spectra(history: StoredHistory) -> list[StoredLayer]:
    """The layers whose singular values are drawn."""
    return moved_most([layer for layer in history.layers if layer.spectra is not None], _MAPS)


def spectra(history: StoredHistory, paper: Paper = Paper.WIDE) -> str:
    """The singular values over training as maps of their density, with the edge of random matrices and stable ranks."""
    shown = with_spectra(history)
    across = min(len(shown), 2 if paper is Paper.WIDE else 1)
    down = -(-len(shown) // across)
    with sheet(paper.inches, down * _MAP[paper], page_style()) as figure:
        figure.set_layout_engine("constrained")
        ratios = list(itertools.chain.from_iterable([3, 1] for _ in range(down)))
        grid = figure.subplots(2 * down, across, squeeze=False, height_ratios=ratios, sharex=True)
        for place in range(across * down):
            row, column = divmod(place, across)
            upper, lower = grid[2 * row][column], grid[2 * row + 1][column]
            if place >= len(shown):
                upper.set_visible(False)
                lower.set_visible(False)
                continue
            layer = shown[place]
            assert layer.spectra is not None
            _draw_map(upper, history.steps, layer, layer.spectra)
            ranks = [layer.spectra.stable_rank(t) for t in range(len(history.steps))]
            lower.plot(history.steps, ranks, color=LOOKS[2][0])
            lower.set_ylim(0, max(ranks) * 1.15)
            lower.locator_params(axis="both", nbins=4)
            if column == 0:
                upper.set_ylabel("singular values")
                lower.set_ylabel("stable\nrank")
            if row == down - 1 or place + across >= len(shown):
                lower.set_xlabel("step")
                lower.tick_params(labelbottom=True)
        handles, names = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=2)
        ends = "; ".join(f"{one.name} from {_rank(one, 0):.3g} to {_rank(one, -1):.3g}" for one in shown)
        return inline(figure, drawing_id("spectra", paper), f"Singular values over training. Stable ranks: {ends}.")


def _rank(layer: StoredLayer, time: int) -> float:
    assert layer.spectra is not None
    return layer.spectra.stable_rank(time)


def _draw_map(axes: "Axes", steps: Sequence[int], layer: StoredLayer, found: StoredSpectra) -> None:
    edge = [found.random_edge(t) for t in range(len(steps))]
    top = 1.08 * max(*map(max, found.values), *edge)
    # Columns at equal distances; each shows the measurement before it.
    places = np.linspace(steps[0], steps[-1], min(_COLUMNS, max(2, len(steps))))
    times = np.searchsorted(steps, places, side="right") - 1
    shares = np.stack([np.histogram(found.values[t], _BINS, (0, top))[0] / len(found.values[t]) for t in times], 1)
    red, green, blue = (int(LOOKS[0][0][i : i + 2], 16) for i in (1, 3, 5))
    picture = np.zeros((*shares.shape, 4), np.uint8)
    picture[..., :3] = red, green, blue
    # The root lets single values be seen beside crowds of them.
    picture[..., 3] = np.round(235 * np.sqrt(shares / shares.max()))
    extent = (steps[0], max(steps[-1], steps[0] + 1), 0.0, top)
    axes.imshow(picture, aspect="auto", origin="lower", extent=extent, interpolation="nearest")
    # The norm of a layer that is read as a map of images is another number.
    axes.plot(steps, [values[0] for values in found.values], color=INK, lw=1.0, label="largest")
    axes.plot(steps, edge, color=LOOKS[1][0], ls=LOOKS[1][1], lw=1.2, label="edge of a random matrix")
    axes.set_ylim(0, top)
    axes.grid(visible=False)
    blocks = f"{found.blocks} blocks of " if found.blocks > 1 else ""
    axes.set_title(f"{layer.name}, {blocks}{found.rows} x {found.columns}", fontsize=9.0, pad=4.0)
    axes.yaxis.set_major_formatter("{x:g}")


def _finish(axes: "Axes", label: str, paper: Paper) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.locator_params(axis="x", integer=True)
    # Above the curves, so that none is hidden by its own explanation.
    columns = 5 if paper is Paper.WIDE else 2
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.2, borderaxespad=0.0)
