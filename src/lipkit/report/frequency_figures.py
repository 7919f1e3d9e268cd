"""A figure of frequencies: which single wave makes a classifier err."""

from pathlib import Path

from lipkit.analysis import FourierHeatMap
from lipkit.report.figure_style import sheet


def draw_fourier_heat_map(heat_map: FourierHeatMap, title: str, path: Path) -> Path:
    """Draws the error at every frequency of one added wave, and writes it to `path`, a .png or .svg; returns it.

    Frequency zero is in the middle. The scale begins at the error without a wave, or below it where a wave helps.
    Needs the extra `plot` (matplotlib).
    """
    low = min(heat_map.clean, float(heat_map.errors.min()))
    with sheet(4.8, 4.0) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        down, across = heat_map.down.tolist(), heat_map.across.tolist()
        ends = (across[0] - 0.5, across[-1] + 0.5, down[-1] + 0.5, down[0] - 0.5)
        shown = axes.imshow(heat_map.errors.tolist(), cmap="cividis", vmin=low, vmax=1.0, extent=ends, aspect="equal")
        axes.grid(visible=False)
        axes.set_xlabel("cycles across the image")
        axes.set_ylabel("cycles down the image")
        axes.set_title(title)
        bar = figure.colorbar(shown, ax=axes)
        bar.set_label(
            f"error with a wave of length {heat_map.length:g}; {heat_map.clean:.1%} without\n"
            f"({heat_map.images} images; an estimate, no bound)"
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    return path
