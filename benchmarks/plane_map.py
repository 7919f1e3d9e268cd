"""The map of a classifier of the plane, from the reports of runs, as one picture: two moons, the Koch ring.

    python benchmarks/plane_map.py RUN [RUN ...] --plot docs/plane.png

A RUN is a folder that `lipkit train` wrote for inputs of two coordinates (recipes/moons.py, recipes/koch.py).
"""

import argparse
from pathlib import Path

from lipkit.report.figure_style import sheet
from lipkit.report.html.charts import draw_map
from lipkit.report.results.recount import read_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    with sheet(4.6 * len(args.runs), 4.6) as figure:
        figure.set_layout_engine("constrained")
        for run, axes in zip(args.runs, figure.subplots(1, len(args.runs), squeeze=False)[0], strict=True):
            found = read_report(run / "report.json")
            if found.plane is None:
                raise SystemExit(f"{run} has no map: its inputs are not points of the plane.")
            draw_map(axes, found.plane, found.eps, found.classes)
            axes.set_xlabel(f"lines: certified radius {', '.join(f'{eps:g}' for eps in found.eps)}")
        figure.savefig(args.plot)


if __name__ == "__main__":
    main()
