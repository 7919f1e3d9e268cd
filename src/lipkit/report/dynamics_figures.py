"""Figures of training dynamics: phases of growth, landscapes of loss and constant, scatter against batch size."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float64
from torch import Tensor

from lipkit.analysis import Landscape, Phases
from lipkit.errors import ArgumentError
from lipkit.report.figure_style import LOOKS, sheet

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes, Figure


def draw_phases(phases: Phases, title: str, path: Path) -> Path:
    """Draws the growth of log K a step by drift and by noise, and writes it to `path`, a .png or .svg; returns it.

    Drift may have both signs and is larger, so it has a panel of its own; noise is drawn on a logarithmic axis.
    Needs the extra `plot` (matplotlib).
    """
    steps = phases.steps.tolist()
    with sheet(6.4, 4.8) as figure:
        figure.set_layout_engine("constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        colour, dashes, _ = LOOKS[0]
        top.axhline(0, color="#444444", lw=0.8)
        top.plot(steps, phases.drift.tolist(), color=colour, ls=dashes)
        top.set_ylabel("drift (mu) a step")
        top.set_title(title)
        names = ("curvature of noise (kappa)", "diffusion (lambda²)")
        for name, values, (colour, dashes, _) in zip(
            names, (phases.curvature, phases.diffusion), LOOKS[1:], strict=False
        ):
            shown = [(x, y) for x, y in zip(steps, values.tolist(), strict=True) if y > 0]
            bottom.plot([x for x, _ in shown], [y for _, y in shown], color=colour, ls=dashes, label=name)
        bottom.set_yscale("log")
        bottom.set_ylabel("noise a step")
        bottom.set_xlabel(f"step; mean of the last {phases.window} steps; a model's terms, no bounds")
        bottom.legend(loc="best")
        _save(figure, path)
    return path


def draw_landscape(
    landscape: Landscape, title: str, path: Path, trajectory: Float64[Tensor, "points 2"] | None = None
) -> Path:
    """Draws loss and log K over one plane of weights side by side, and writes them to `path`; returns it.

    A cross marks the present weights, a line with dots the `trajectory` of `project_weights`. Needs the extra `plot`.
    """
    if min(landscape.loss.shape) < 2:
        raise ArgumentError(f"Contours need two steps along each direction, got {tuple(landscape.loss.shape)}.")
    with sheet(8.0, 3.9) as figure:
        figure.set_layout_engine("constrained")
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        _contours(figure, left, landscape, landscape.loss, "loss")
        _contours(figure, right, landscape, landscape.log_constant, f"log K ({landscape.kind.value})")
        for axes in (left, right):
            if trajectory is not None:
                first, second = trajectory.unbind(1)
                axes.plot(first.tolist(), second.tolist(), color="white", lw=3.0)
                axes.plot(first.tolist(), second.tolist(), color=LOOKS[1][0], marker="o", ms=3.0, lw=1.2)
            axes.plot(0, 0, color="#000000", marker="x", ms=7, mew=2, ls="")
            axes.set_xlabel("step along the first direction")
            axes.set_xlim(float(landscape.first.min()), float(landscape.first.max()))
            axes.set_ylim(float(landscape.second.min()), float(landscape.second.max()))
        left.set_ylabel("step along the second direction")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.0)
        _save(figure, path)
    return path


def draw_batch_sizes(
    sizes: Sequence[int],
    variances: Sequence[float],
    predicted: Sequence[float],
    slope: float,
    seeds: int,
    path: Path,
) -> Path:
    """Draws the variance of K over orders of the samples against the batch size, and writes it to `path`; returns it.

    Bars are two standard errors of a variance of Gaussian numbers, 2 (2 / (seeds - 1))^(1/2) of it. The thin line has
    slope -1 and goes through the middle of the points. Needs the extra `plot`.
    """
    if not len(sizes) == len(variances) == len(predicted) > 1 or seeds < 2:
        raise ArgumentError(
            "The figure needs as many variances and predictions as sizes, two at least, and two seeds; "
            f"got {len(variances)}, {len(predicted)}, {len(sizes)} and {seeds}."
        )
    bars = [2 * value * (2 / (seeds - 1)) ** 0.5 for value in variances]
    product = 1.0
    for size, value in zip(sizes, variances, strict=True):
        product *= (size * value) ** (1 / len(sizes))
    with sheet(6.4, 4.2) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        axes.plot(sizes, [product / size for size in sizes], color="#444444", lw=1.0, label="slope -1")
        (colour, _, marker), (other, dashes, second) = LOOKS[:2]
        label = f"{seeds} seeds: slope {slope:.2f}"
        axes.errorbar(sizes, variances, yerr=bars, color=colour, marker=marker, ls="", capsize=2.5, label=label)
        axes.plot(sizes, predicted, color=other, ls=dashes, marker=second, label="predicted by the model")
        axes.set_xscale("log")
        axes.set_yscale("log")
        # Names that would touch their left neighbour are left out.
        shown: list[int] = []
        for size in sizes:
            shown += [size] if not shown or size > 1.15 * shown[-1] else []
        axes.set_xticks(shown, [str(size) for size in shown])
        axes.minorticks_off()
        axes.set_xlabel("samples in a batch")
        axes.set_ylabel("variance of K")
        axes.set_title("Scatter of the product of norms over orders of the samples")
        axes.legend(loc="best")
        _save(figure, path)
    return path


def _contours(figure: "Figure", axes: "Axes", landscape: Landscape, heights: Tensor, title: str) -> None:
    # Rows are steps along the first direction, which is drawn to the right.
    grid = landscape.first.tolist(), landscape.second.tolist(), heights.mT.tolist()
    filled = axes.contourf(*grid, levels=14, cmap="cividis")
    axes.contour(*grid, levels=filled.levels, colors="white", linewidths=0.4)
    axes.grid(visible=False)
    axes.set_title(title)
    figure.colorbar(filled, ax=axes)


def _save(figure: "Figure", path: Path) -> None:
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
