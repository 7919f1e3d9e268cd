"""Accuracy and certified accuracy of a private network against epsilon, on the 1,797 digits of scikit-learn.

Claim: one network is private and certified at once, and what privacy costs is visible before a large run.

    python benchmarks/private_digits.py [--runs 5] [--plot FILE]

A 1-Lipschitz network 64-32-10 is trained on 1,400 digits by `privacy.Training`, with 100 Poisson batches of 400 and
clipped gradients of its outputs; delta is 1e-4. Settings are the same for every epsilon. The other 397 digits are
evaluated; certified accuracy is at l2 radii, in pixels of [0, 1]. The last row is the same without noise.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from timing import machine
from torch import nn

from lipkit import losses, privacy
from lipkit import nn as lnn
from lipkit.certify import head_pairwise, radius
from lipkit.data import Examples, digits

EPSILONS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
RADII = (0.0, 0.25, 0.5)


def train(examples: Examples, inputs: privacy.Inputs, plan: privacy.Plan, ledger: Path) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), lnn.Linear(64, 32, bias=False), lnn.MaxMin(), lnn.Linear(32, 10, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss, records = losses.TauCrossEntropy(8.0), (examples.inputs, examples.labels)
    clip = privacy.Fixed(0.2)
    with privacy.Training(model, loss, optimizer, records, plan, inputs, ledger=ledger, clip=clip) as training:
        for _ in range(plan.steps):
            training.step()
    return model.eval()


def certified(model: nn.Module, inputs: privacy.Inputs, test: Examples) -> list[float]:
    """Shares of the test set, in percent. The projection onto the ball is 1-Lipschitz, so radii stay as they are."""
    x = inputs(test.inputs)
    with torch.no_grad():
        outputs = model(x)
    found = radius(outputs, test.labels, head_pairwise(model, x[:1]))
    right = outputs.argmax(1) == test.labels
    return [100 * float((right & ((found.value > r) | (r == 0))).float().mean()) for r in RADII]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    print(machine())
    learned, test = digits().split(397, seed=0)
    inputs = privacy.Inputs((1, 8, 8), radius=3.5, center=0.3)
    rows: list[tuple[str, list[list[float]]]] = []
    numbers: tuple[float | None, ...] = (*EPSILONS, None)
    for epsilon in numbers:
        # Noise that no digit of a float32 weight can show stands for none.
        sigma = 1e-9 if epsilon is None else None
        plan = privacy.Plan(len(learned), 400, 100, 1e-4, epsilon=epsilon, sigma=sigma)
        runs = []
        for seed in range(given.runs):
            torch.manual_seed(seed)
            with tempfile.TemporaryDirectory() as folder:
                runs.append(certified(train(learned, inputs, plan, Path(folder) / "ledger"), inputs, test))
        label = "none" if epsilon is None else f"{epsilon:g}"
        rows.append((label, runs))
        means = [
            f"{statistics.mean(column):.1f} ± {statistics.stdev(column):.1f}" for column in zip(*runs, strict=True)
        ]
        print(f"epsilon {label}, sigma {plan.sigma:.3g}: " + ", ".join(means), flush=True)
    if given.plot is not None:
        draw(rows, given.plot)


def draw(rows: list[tuple[str, list[list[float]]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    private = [(float(label), runs) for label, runs in rows if label != "none"]
    for k, (r, color) in enumerate(zip(RADII, ("#0072b2", "#009e73", "#d55e00"), strict=True)):
        means = [statistics.mean(run[k] for run in runs) for _, runs in private]
        spread = [statistics.stdev(run[k] for run in runs) for _, runs in private]
        name = "right" if r == 0 else f"certified at {r:g}"
        axes.errorbar([e for e, _ in private], means, spread, color=color, marker="o", ms=4, capsize=3, label=name)
        free = [statistics.mean(run[k] for run in runs) for label, runs in rows if label == "none"]
        for level in free:
            axes.axhline(level, color=color, lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xticks([e for e, _ in private], [f"{e:g}" for e, _ in private])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("epsilon (delta = 1e-4)")
    axes.set_ylabel("% of 397 digits")
    axes.set_title("Private and certified; dotted: the same without noise", fontsize=10)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
