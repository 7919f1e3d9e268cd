"""Certified accuracy against the radius, one curve for each seed, from stored radii, beside published figures.

    python benchmarks/certified_curves.py cifar10 --counts docs/cifar10_shift.json --plot docs/certified.png
    python benchmarks/certified_curves.py cifar10 --counts docs/cifar10_shift.json --runs RUN RUN RUN --attacked RUN

The first command draws counts that are stored; the second one makes them. A RUN is a folder that `lipkit train`,
`certify` or `attack` wrote: its `evaluation` has a line for each test image with the radius that is proven, and with
what the attack broke. An attack that was stopped counts for the images that it saw, which are the first ones.
Published: SOC-M after 24 hours in "1-Lipschitz layers compared", Prach et al. 2024 (CIFAR-10); Fazlyab et al. 2023 and
GloRo's authors (MNIST, 1.58).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lipkit.report.figure_style import INK, LOOKS, sheet

# Radii of a curve, besides 0.
STEPS = 255
Points = Sequence[tuple[float, float]]
# For each data set the title, the largest radius, our aims, and what is published.
FIGURES: dict[str, tuple[str, float, Points, Sequence[tuple[str, Points]]]] = {
    "cifar10": (
        "CIFAR-10, shift network, 443 s of training on one GPU",
        1.0,
        ((36 / 255, 67.5), (72 / 255, 54.5), (108 / 255, 43.0)),
        (("SOC-M, 24 hours", ((0.0, 76.9), (36 / 255, 66.3), (72 / 255, 53.4), (108 / 255, 40.0))),),
    ),
    "mnist": (
        "MNIST, isometries, minutes on one core",
        4.25,
        (),
        (("CRM, 400 epochs", ((1.58, 63.37),)), ("GloRo", ((1.58, 62.8),))),
    ),
}


def read_samples(run: Path) -> list[dict[str, Any]]:
    """The stored lines of a run, each image once."""
    files = sorted((run / "evaluation").glob("samples-*.jsonl"))
    lines = (json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    found = {line["index"]: line for line in lines}
    if sorted(found) != list(range(len(found))) or not found:
        raise SystemExit(f"{run} has no evaluation of the first test images; name a folder that lipkit wrote.")
    return [found[place] for place in range(len(found))]


def count_certified(run: Path, radii: Sequence[float]) -> dict[str, Any]:
    """How many images are right, and how many are proven beyond each radius."""
    samples = read_samples(run)
    return {
        "images": len(samples),
        "right": sum(one["predicted"] == one["label"] for one in samples),
        "certified": [sum(one["radius"] > r for one in samples) for r in radii],
    }


def count_attacked(run: Path) -> dict[str, Any]:
    """How many images the attack left right at each of its radii."""
    samples = read_samples(run)
    radii = json.loads((run / "evaluation" / "settings.json").read_text(encoding="utf-8"))["eps"]
    left = [sum(not one["broken"][i] for one in samples) for i in range(len(radii))]
    return {"images": len(samples), "radii": radii, "left": left}


def draw(which: str, counts: dict[str, Any], plot: Path) -> None:
    """The curve of each seed, what attacks left, our aims, and the published points."""
    title, _, aims, published = FIGURES[which]
    colour, _, marker = LOOKS[0]
    with sheet(6.4, 4.0) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        for number, one in enumerate(counts["runs"]):
            shares = [100 * count / one["images"] for count in one["certified"]]
            label = None if number else f"certified, each of {len(counts['runs'])} seeds"
            axes.plot(counts["radii"], shares, color=colour, linewidth=1.0, label=label)
        for number, one in enumerate(counts["attacked"]):
            shares = [100 * count / one["images"] for count in one["left"]]
            label = None if number else f"left by our attack (first {one['images']:,} images)"
            axes.plot(one["radii"], shares, marker, color=INK, markerfacecolor="none", label=label, clip_on=False)
        if aims:
            axes.plot(*zip(*aims, strict=True), "_", color=INK, markersize=12, markeredgewidth=1.6, label="our aims")
        for (name, points), (other, _, mark) in zip(published, LOOKS[1:], strict=False):
            axes.plot(*zip(*points, strict=True), mark, color=other, label=f"published: {name}", clip_on=False)
        axes.set(title=title, xlabel="radius (l2)", ylabel="percent of test images", ylim=(0, 100))
        axes.set_xlim(0, counts["radii"][-1])
        axes.legend(loc="upper right")
        figure.savefig(plot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=FIGURES)
    parser.add_argument("--counts", type=Path, required=True, help="JSON file of the counts; written if there are runs")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="one folder for each seed")
    parser.add_argument("--attacked", type=Path, nargs="+", default=[], help="folders of attacks")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.runs:
        last = FIGURES[args.which][1]
        radii = [last * i / STEPS for i in range(STEPS + 1)]
        made = {
            "radii": radii,
            "runs": [count_certified(run, radii) for run in args.runs],
            "attacked": [count_attacked(run) for run in args.attacked],
        }
        args.counts.write_text(json.dumps(made) + "\n", encoding="utf-8")
    if args.plot is not None:
        draw(args.which, json.loads(args.counts.read_text(encoding="utf-8")), args.plot)


if __name__ == "__main__":
    main()
