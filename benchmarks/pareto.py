"""Clean against certified accuracy for each loss, over its hyper-parameter; and the temperature in the plane.

Networks: 64 - 64 - 64 - 10, orthogonal layers, MaxMin, a head with unit rows, on scikit-learn's digits (1400 images to
train, 397 to test), 30 epochs of Adam at 5e-3 falling to 0, batches of 100. Three seeds, each for split, weights and
order. Certified at 0.5 in l2, pixels in [0, 1], by the constants of pairs. EMMA and CRM see 16 times the logits and
constants. In the plane: 1000 points of two moons, 2 - 64 - 64 - 64 - 1, 60 epochs, seed 0.

    python benchmarks/pareto.py [--keep FILE.json] [--plot docs/guides]

Some eight minutes of one core. With --keep, results that are in the file are not computed again.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipkit import bounds, losses
from lipkit import nn as lnn
from lipkit.certify import Forward, head_pairwise, radius
from lipkit.certify.pareto import pareto_front
from lipkit.data import Examples, digits, moons
from lipkit.report.figure_style import LOOKS, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPS, SEEDS, EPOCHS, BATCH, RATE, SCALE = 0.5, (0, 1, 2), 30, 100, 5e-3, 16.0
PLANE_TAUS, PLANE_EPOCHS, LEVELS = (0.5, 5.0, 50.0), 60, (0.1, 0.2, 0.3)

# The loss of logits and labels, given constants of pairs of logits.
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sweep:
    """A loss, its knob, and where the knob is set."""

    name: str
    knob: str
    values: tuple[float, ...]
    objective: Callable[[float], Objective]
    # Where the picture names the first and the last value: points of a printer away from the marker.
    names: tuple[tuple[int, int], tuple[int, int]]


def plain(loss: nn.Module) -> Objective:
    return lambda z, y, _: loss(z, y)


def scaled(loss: nn.Module) -> Objective:
    """Logits of a 1-Lipschitz network are small; what is compared with their exponentials sees them enlarged."""
    return lambda z, y, constants: loss(SCALE * z, y, SCALE * constants)


SWEEPS = (
    Sweep(
        "cross-entropy",
        "τ",
        (1, 2, 4, 8, 16, 32, 64),
        lambda v: plain(losses.TauCrossEntropy(v)),
        ((-30, -10), (-38, -6)),
    ),
    Sweep(
        "hinge",
        "m",
        (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2),
        lambda v: plain(losses.MulticlassHinge(v)),
        ((6, -4), (-14, -14)),
    ),
    Sweep(
        "HKR, m = 0.3",
        "α",
        (1, 2, 4, 8, 16, 64),
        lambda v: plain(losses.MulticlassHKR(0.3, v)),
        ((-20, -14), (-36, -8)),
    ),
    Sweep(
        "CRM",
        "λ",
        (0, 1, 2, 4, 8, 16),
        lambda v: scaled(losses.CRM(losses.Truncated(2 * EPS), weight=v)),
        ((-34, 0), (-20, 8)),
    ),
    Sweep("EMMA", "ε", (0, 0.1, 0.2, 0.3, 0.5, 0.75, 1), lambda v: scaled(losses.EMMA(v)), ((8, -6), (-34, 5))),
)


def trained(model: nn.Sequential, data: Examples, objective: Objective, epochs: int) -> nn.Sequential:
    """Adam with a learning rate that falls to zero."""
    head = model[-1]
    assert isinstance(head, lnn.Linear)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(data) // BATCH))
    for _ in range(epochs):
        for rows in torch.randperm(len(data)).split(BATCH):
            optimizer.zero_grad()
            # All layers before the head have constant one, so a pair has the distance of its rows; to train with, that
            # is all. What is reported below is proven by `head_pairwise`.
            weight = head.weight
            constants = torch.cdist(weight, weight)
            objective(model(data.inputs[rows]), data.labels[rows], constants).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def scores(sweep: Sweep, value: float, seed: int) -> tuple[float, float]:
    """Clean and certified accuracy of one network, in percent."""
    train, test = digits().split(397, seed=seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Flatten(), lnn.Linear(64, 64, method=lnn.Householder()), lnn.MaxMin()),
        *(lnn.Linear(64, 64, method=lnn.Householder()), lnn.MaxMin()),
        lnn.Linear(64, 10, method=lnn.UnitRows()),
    )
    trained(model, train, sweep.objective(value), EPOCHS)
    bound = head_pairwise(model, test.inputs[:1], bounds.Product())
    logits = Forward(model, test.inputs[:1])(test.inputs)
    radii = radius(logits.value, test.labels, bound, error=logits.error)
    clean = (logits.value.argmax(1) == test.labels).double().mean()
    return 100 * float(clean), 100 * float(radii.certified(EPS).double().mean())


def swept(kept: dict[str, list[float]]) -> dict[str, Tensor]:
    """Scores of every sweep, by value, seed, and clean or certified."""
    found: dict[str, Tensor] = {}
    for sweep in SWEEPS:
        for value in sweep.values:
            for seed in SEEDS:
                key = f"{sweep.name} {sweep.knob} {value:g} seed {seed}"
                if key not in kept:
                    kept[key] = list(scores(sweep, value, seed))
        rows = [[kept[f"{sweep.name} {sweep.knob} {value:g} seed {seed}"] for seed in SEEDS] for value in sweep.values]
        found[sweep.name] = torch.tensor(rows, dtype=torch.float64)
    return found


def report(found: dict[str, Tensor], front: set[int]) -> None:
    print(
        f"{'loss':14} {'knob':>8} {'clean':>7} {'from-to':>13} {'certified':>10} {'from-to':>13}  on the front of means"
    )
    at = 0
    for sweep in SWEEPS:
        for value, rows in zip(sweep.values, found[sweep.name], strict=True):
            (a, b), low, high = rows.mean(0).tolist(), rows.amin(0).tolist(), rows.amax(0).tolist()
            spans = [f"{x:.1f}-{y:.1f}" for x, y in zip(low, high, strict=True)]
            star = "*" if at in front else ""
            print(f"{sweep.name:14} {sweep.knob}={value:<6g} {a:7.2f} {spans[0]:>13} {b:10.2f} {spans[1]:>13}  {star}")
            at += 1


def draw(found: dict[str, Tensor], path: Path) -> None:
    """Means over seeds joined along each knob, the front of the means, and how far seeds are apart."""
    means = torch.cat([rows.mean(1) for rows in found.values()])
    front = means[pareto_front(means)]
    with sheet(8.0, 4.6) as figure:
        axes = figure.subplots()
        figure.subplots_adjust(left=0.085, right=0.77, top=0.9, bottom=0.11)
        (left, low), (right, high) = (means.amin(0) - 1).tolist(), (means.amax(0) + torch.tensor([0.6, 2.5])).tolist()
        corners = torch.tensor([[float(front[0, 0]), low - 9], *front.tolist(), [left - 9, float(front[-1, 1])]])
        # To the left of a point and below it everything is dominated: from one point go left, then up to the next.
        axes.step(corners[:, 0], corners[:, 1], where="post", color="#cccccc", linewidth=5, zorder=1, label="front")
        axes.set_xlim(left, right)
        axes.set_ylim(low - 2, high)
        for sweep, (colour, dash, marker) in zip(SWEEPS, LOOKS, strict=True):
            rows = found[sweep.name]
            line = rows.mean(1)
            axes.plot(line[:, 0], line[:, 1], color=colour, ls=dash, marker=marker, label=sweep.name, zorder=3)
            for at, offset in zip((0, -1), sweep.names, strict=True):
                named = f"{sweep.knob} = {sweep.values[at]:g}", (float(line[at, 0]), float(line[at, 1])), offset
                axes.annotate(*named, textcoords="offset points", fontsize=7.5, color=colour)
        every = torch.cat(list(found.values()))
        spread = ((every.amax(1) - every.amin(1)).mean(0) / 2).tolist()
        axes.errorbar(
            left + 2.4, low + 14, xerr=spread[0], yerr=spread[1], color="#444444", capsize=2.5, linewidth=1.0, ls=""
        )
        axes.annotate(
            "lowest to highest of\nthree splits, on average",
            (left + 2.4, low + 14),
            (0, -34),
            textcoords="offset points",
            fontsize=7.5,
            ha="center",
            color="#444444",
        )
        axes.set_title(f"Digits: what each loss trades (test images, certified at {EPS:g} in l2)")
        axes.set_xlabel("clean accuracy (%)")
        axes.set_ylabel(f"certified accuracy at {EPS:g} (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3.4)
        figure.savefig(path, metadata={"Software": None})


def plane(tau: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(lnn.Linear(2, 64, method=lnn.Householder()), lnn.MaxMin()),
        *(lnn.Linear(64, 64, method=lnn.Householder()), lnn.MaxMin()),
        *(lnn.Linear(64, 64, method=lnn.Householder()), lnn.MaxMin()),
        lnn.Linear(64, 1, method=lnn.Householder()),
    )
    loss = losses.TauBCE(tau)
    return trained(model, moons(1000, seed=0, noise=0.05), lambda z, y, _: loss(z[:, 0], y), PLANE_EPOCHS)


def draw_plane(path: Path) -> None:
    """The decision boundary for three temperatures, and how far from it a decision is certain."""
    data = moons(1000, seed=1, noise=0.05)
    span = torch.linspace(-1.6, 2.6, 211), torch.linspace(-1.2, 1.7, 146)
    grid = torch.cartesian_prod(*span)
    with sheet(8.0, 2.55) as figure:
        panels: Any = figure.subplots(1, 3, sharey=True)
        figure.subplots_adjust(left=0.06, right=0.99, top=0.83, bottom=0.09, wspace=0.06)
        for axes, tau in zip(panels, PLANE_TAUS, strict=True):
            model = plane(tau)
            with torch.no_grad():
                heights = model(grid).reshape(211, 146).T
                f = model(data.inputs)[:, 0] * (2 * data.labels - 1)
            clean, sure = 100 * float((f > 0).double().mean()), 100 * float((f > LEVELS[1]).double().mean())
            mean = f"mean y f {f.mean():.3f}"
            print(f"moons, tau {tau:g}: clean {clean:.1f}, certified at {LEVELS[1]:g} {sure:.1f}, {mean}")
            contours(axes, span, heights)
            points(axes, data)
            axes.set_title(f"τ = {tau:g}: clean {clean:.1f} %,\n{sure:.1f} % certified at {LEVELS[1]:g}", fontsize=9.0)
        figure.savefig(path, metadata={"Software": None})


def contours(axes: "Axes", span: tuple[Tensor, Tensor], heights: Tensor) -> None:
    bands = [-1e9, *(-x for x in reversed(LEVELS)), 0.0, *LEVELS, 1e9]
    greys = ["#c6dbef", "#d6e5f4", "#e6eff9", "#f6fafd", "#fdf8f3", "#fbeee0", "#f8e2ca", "#f5d6b4"]
    axes.contourf(*span, heights, levels=bands, colors=greys)
    axes.contour(*span, heights, levels=[0.0], colors="#000000", linewidths=1.8)
    axes.contour(*span, heights, levels=[-LEVELS[1], LEVELS[1]], colors="#555555", linewidths=0.9, linestyles="dashed")
    axes.set_aspect("equal")
    axes.grid(visible=False)


def points(axes: "Axes", data: Examples) -> None:
    for label, (colour, marker) in enumerate((("#0072B2", "o"), ("#D55E00", "^"))):
        x = data.inputs[data.labels == label][:120]
        axes.plot(x[:, 0], x[:, 1], ls="", marker=marker, ms=2.6, color=colour, mew=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    kept = json.loads(args.keep.read_text()) if args.keep is not None and args.keep.exists() else {}
    found = swept(kept)
    if args.keep is not None:
        args.keep.write_text(json.dumps(kept, indent=1))
    report(found, set(pareto_front(torch.cat([rows.mean(1) for rows in found.values()])).tolist()))
    if args.plot is not None:
        draw(found, args.plot / "losses-pareto.png")
        draw_plane(args.plot / "losses-moons.png")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
