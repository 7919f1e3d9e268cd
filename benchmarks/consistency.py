"""How the gap between training and test accuracy closes with more data, for several temperatures, on digits.

Claim: with a constant of 1 the gap falls to zero as the share of the data grows, sooner at small tau; a network without
a constant keeps one (Bethune 2024, proposition 7 and figure 4.6: a CNN on 2 to 100 % of CIFAR-10, no numbers).

    python benchmarks/consistency.py [--seeds 3] [--steps 200] [--plot FILE]

Networks: 64 - 64 - 64 - 10, orthogonal layers and MaxMin, cross-entropy at temperature tau; and the same widths with
plain layers, ReLU and cross-entropy. scikit-learn's digits: 1,200 images to train, 597 to test, split by the seed. Each
share is drawn anew by each seed. Every network gets the same number of steps of Adam at 5e-3 falling to 0, in batches
of at most 100. Gaps are of `analysis.generalization_gap`, of errors. One minute of one core.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import analysis, losses
from lipkit import nn as lnn
from lipkit.data import Examples, digits
from lipkit.report.figure_style import LOOKS, sheet

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
TAUS = (0.25, 1.0, 4.0, 64.0)
PLAIN = "no constant"
TRAIN, BATCH, RATE = 1200, 100, 5e-3


@dataclass(frozen=True)
class Measured:
    """Accuracies of several seeds at one share of the data."""

    share: float
    train: tuple[float, ...]
    test: tuple[float, ...]

    @property
    def gaps(self) -> list[float]:
        return [a - b for a, b in zip(self.train, self.test, strict=True)]


def is_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) != labels).double()


def network(tau: float | None) -> tuple[nn.Module, nn.Module]:
    """A network with its loss."""
    if tau is None:
        layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        return nn.Sequential(*layers), nn.CrossEntropyLoss()
    hidden = [lnn.Linear(64, 64), lnn.MaxMin(), lnn.Linear(64, 64), lnn.MaxMin()]
    return nn.Sequential(nn.Flatten(), *hidden, lnn.Linear(64, 10)), losses.TauCrossEntropy(tau)


def part_of(data: Examples, rows: Tensor) -> Examples:
    return Examples(data.inputs[rows], data.labels[rows], data.classes)


def fit(data: Examples, tau: float | None, steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model, loss = network(tau)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows = torch.randperm(len(data))
    for _ in range(steps):
        if len(rows) < min(BATCH, len(data)):
            rows = torch.randperm(len(data))
        chosen, rows = rows[:BATCH], rows[BATCH:]
        optimizer.zero_grad()
        loss(model(data.inputs[chosen]), data.labels[chosen]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def sweep(tau: float | None, seeds: int, steps: int) -> list[Measured]:
    data, found = digits(), []
    for share in SHARES:
        train: list[float] = []
        test: list[float] = []
        for seed in range(seeds):
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
            # Another draw of the share for each seed and share, as published.
            draws = torch.Generator().manual_seed(1000 * seed + round(1000 * share))
            chosen = order[:TRAIN][torch.randperm(TRAIN, generator=draws)[: round(share * TRAIN)]]
            few, others = part_of(data, chosen), part_of(data, order[TRAIN:])
            gap = analysis.generalization_gap(fit(few, tau, steps, seed), few, others, is_wrong)
            train.append(100 * (1 - gap.train))
            test.append(100 * (1 - gap.test))
        found.append(Measured(share, tuple(train), tuple(test)))
    return found


def draw(results: dict[str, list[Measured]], path: Path) -> None:
    """Training accuracy above, test accuracy below: one envelope a network, and the gaps beside them."""
    sizes = [round(share * TRAIN) for share in SHARES]
    with sheet(8.0, 3.8) as figure:
        figure.set_layout_engine("constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for (name, rows), (colour, dashes, marker) in zip(results.items(), LOOKS, strict=True):
            train, test = [mean(one.train) for one in rows], [mean(one.test) for one in rows]
            left.plot(sizes, test, color=colour, ls=dashes, marker=marker, ms=3.5, label=name)
            left.plot(sizes, train, color=colour, ls=dashes, lw=0.8)
            left.fill_between(sizes, test, train, color=colour, alpha=0.12, lw=0)
            right.plot(sizes, [mean(one.gaps) for one in rows], color=colour, ls=dashes, marker=marker, ms=3.5)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.set_xlabel("images to train")
        left.set_ylabel("accuracy in %: training above, test below")
        right.set_ylabel("training less test, in points")
        left.legend(loc="lower right")
        figure.savefig(path, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Generalisation gap against share of the data and temperature.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, busy = time.perf_counter(), time.process_time()
    settings = {**{f"tau {tau:g}": tau for tau in TAUS}, PLAIN: None}
    results = {name: sweep(tau, given.seeds, given.steps) for name, tau in settings.items()}
    print("| network | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
    print("|---" * (len(SHARES) + 1) + "|")
    for name, rows in results.items():
        cells = [
            f"{mean(one.train):.1f} / {mean(one.test):.1f}; {mean(one.gaps):.1f} ± "
            f"{stdev(one.gaps) / math.sqrt(given.seeds):.1f}"
            for one in rows
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if given.plot:
        draw(results, given.plot)
    print(f"{machine()}; {time.perf_counter() - start:.0f} s, {time.process_time() - busy:.0f} s of processor time")


if __name__ == "__main__":
    main()
