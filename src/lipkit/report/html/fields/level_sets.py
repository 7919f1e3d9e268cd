"""The drawing of a slice through a field: its level sets, and the mesh that it was learned from."""

import numpy as np

from lipkit.report.figure_style import INK, LOOKS, Paper, drawing, inline
from lipkit.report.html.charts import drawing_id
from lipkit.report.results.surface_contents import SurfaceContents

# Between two lines, in diagonals.
_STEP = 0.05


def level_sets(contents: SurfaceContents, paper: Paper) -> str:
    """Lines of equal value at a twentieth of the diagonal, the zero line thick, and the mesh dashed."""
    cut = contents.cut
    shape = len(cut.up), len(cut.across)
    values, exact = np.reshape(cut.values, shape), np.reshape(cut.exact, shape)
    tall = (cut.up[-1] - cut.up[0]) / (cut.across[-1] - cut.across[0])
    inches = min(paper.inches, 6.0)
    with drawing(paper.inches, 0.6 + (inches - 0.6) * min(max(tall, 0.3), 1.2)) as (figure, axes):
        step = _STEP * contents.diagonal
        first, last = int(np.ceil(values.min() / step)), int(np.floor(values.max() / step))
        levels = [step * i for i in range(first, last + 1) if i]
        blue, orange = LOOKS[0][0], LOOKS[1][0]
        if values.max() > 0:
            axes.contourf(cut.across, cut.up, values, (0, np.inf), colors=blue, alpha=0.22)
        if levels:
            axes.contour(cut.across, cut.up, values, levels, colors=INK, linewidths=0.6, linestyles="solid")
        if values.min() < 0 < values.max():
            axes.contour(cut.across, cut.up, values, (0,), colors=blue, linewidths=2.0)
        if exact.min() < 0 < exact.max():
            axes.contour(cut.across, cut.up, exact, (0,), colors=orange, linewidths=1.2, linestyles=[(0, (4, 3))])
        axes.set_aspect("equal")
        axes.grid(visible=False)
        axes.set_xlabel(cut.axes[0])
        axes.set_ylabel(cut.axes[1])
        apart = 100 * float(np.abs(values - exact).max()) / contents.diagonal
        said = (
            f"Level sets of the field on a slice; it differs from the exact distance by {apart:.2g} % of the diagonal"
        )
        return inline(figure, drawing_id("slice", paper), f"{said} at most at the nodes that are drawn.")
