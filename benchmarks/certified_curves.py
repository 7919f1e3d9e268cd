"""Certified accuracy against the radius, from the reports of runs with several seeds, beside published figures.

    python benchmarks/certified_curves.py --mnist RUN RUN RUN --cifar10 RUN RUN RUN --plot docs/certified.png

A RUN is a folder that `lipkit train` wrote, or its report.json. Published points: Fazlyab et al. 2023 and GloRo's
authors (MNIST, 1.58), SOC-M after 24 hours in "1-Lipschitz layers compared", Prach et al. 2024 (CIFAR-10).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lipkit.report.figure_style import INK, LOOKS, sheet
from lipkit.report.results.recount import read_report

if TYPE_CHECKING:
    from lipkit.report.figure_style import Axes

MNIST = (("CRM, 400 epochs", ((1.58, 63.37),)), ("GloRo", ((1.58, 62.8),)))
CIFAR10 = (("SOC-M, 24 hours", ((0.0, 76.9), (36 / 255, 66.3), (72 / 255, 53.4), (108 / 255, 40.0))),)
Published = Sequence[tuple[str, Sequence[tuple[float, float]]]]


def panel(axes: "Axes", title: str, runs: Sequence[Path], published: Published) -> None:
    """The curve of each seed, what attacks left at the radii of the evaluation, and the published points."""
    colour, _, marker = LOOKS[0]
    for number, run in enumerate(runs):
        found = read_report(run / "report.json" if run.is_dir() else run)
        radii = [point.radius for point in found.curve]
        shares = [100 * point.share.count / point.share.total for point in found.curve]
        axes.plot(radii, shares, color=colour, linewidth=1.2, label=None if number else "certified, each seed")
        attacked = [100 * share.count / share.total for share in found.overall.attacked or ()]
        axes.plot(
            found.eps[: len(attacked)], attacked, marker, color=INK, markerfacecolor="none", markersize=4,
            label=None if number else "left by our attack",
        )  # fmt: skip
    for (name, points), (other, _, mark) in zip(published, LOOKS[1:], strict=False):
        axes.plot(*zip(*points, strict=True), mark, color=other, markersize=6, label=f"published: {name}")
    axes.set(title=title, xlabel="radius (l2)", ylabel="percent of test images", ylim=(0, 100), xlim=(0, None))
    axes.legend(loc="upper right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, nargs="+", required=True)
    parser.add_argument("--cifar10", type=Path, nargs="+", required=True)
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    with sheet(9.0, 3.6) as figure:
        figure.set_layout_engine("constrained")
        left, right = figure.subplots(1, 2)
        panel(left, "MNIST, isometries, minutes on one core", args.mnist, MNIST)
        panel(right, "CIFAR-10, shifts, 505 s on one GPU", args.cifar10, CIFAR10)
        figure.savefig(args.plot)


if __name__ == "__main__":
    main()
