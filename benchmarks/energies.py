"""Two moons: an energy with a constant that was chosen, beside a network without, trained and sampled in the same way.

    python benchmarks/energies.py                          the figures of docs/results.md
    python benchmarks/energies.py --plot energies.png      and the picture of their densities and draws

Each trained energy is judged by the Wasserstein distance of 1000 draws to 1000 points that were not trained on: an
exact optimal assignment, not a bound. Draws come from ULA and MALA, and from the density itself, which is tabulated
on a grid: that is what a perfect sampler would give. One core.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from lipkit.data import moons
from lipkit.sdf import MALA, ULA, Energy, EnergyTraining, log_partition
from lipkit.sdf._base import constant_of

DRAWS = 1000
# Cells of the tabulated density along each axis.
GRID = 400
STEPS = (25, 50, 100, 400)


@dataclass(frozen=True, eq=False)
class Trained:
    """An energy, what it is called, and how long it took to train."""

    name: str
    energy: Energy
    seconds: float


def distance(a: Tensor, b: Tensor) -> float:
    """The Wasserstein distance of two sets of equally many points, exactly."""
    costs = cdist(a.numpy(), b.numpy())
    return float(costs[linear_sum_assignment(costs)].mean())


def table(energy: Energy) -> tuple[Tensor, Tensor]:
    """Centers of cells, and the logarithms of the masses that p has there, up to the variation within a cell."""
    sides = (energy.high - energy.low) / GRID
    axes = [energy.low[i] + (torch.arange(GRID, dtype=torch.float64) + 0.5) * sides[i] for i in range(2)]
    centers = torch.cartesian_prod(*axes)
    values = torch.cat([energy.field(part) for part in centers.split(2**14)]).detach()
    return centers, torch.log_softmax(-values, 0)


def draw_from_table(energy: Energy, seed: int) -> Tensor:
    """Draws of p from its table, even within a cell."""
    random = torch.Generator().manual_seed(seed)
    centers, masses = table(energy)
    chosen = torch.multinomial(masses.exp(), DRAWS, replacement=True, generator=random)
    sides = (energy.high - energy.low) / GRID
    return centers[chosen] + (torch.rand(DRAWS, 2, generator=random, dtype=torch.float64) - 0.5) * sides


def train(constants: list[float], steps: int) -> list[Trained]:
    """Energies of every constant, and one of a plain network with as many parameters."""
    points = moons(5000, seed=0).inputs.double()
    found: list[Trained] = []
    for constant in constants:
        since = time.process_time()
        energy = EnergyTraining(constant, steps=steps)(points)
        found.append(Trained(f"K = {constant:g}", energy, time.process_time() - since))
    torch.manual_seed(0)
    sizes = (2, 64, 64, 64, 64)
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    since = time.process_time()
    # The same chains: their step is that of the first constant.
    energy = EnergyTraining(constants[0], steps=steps)(points, nn.Sequential(*parts, nn.Linear(64, 1)))
    found.append(Trained("no constraint", energy, time.process_time() - since))
    return found


def measure(one: Trained, step: float) -> Tensor:
    """Print what the draws of an energy are like, and return those of MALA."""
    energy = one.energy
    held = moons(DRAWS, seed=1).inputs.double()
    slopes = torch.linalg.vector_norm(energy.field.gradient(energy.draw_evenly(4000)), dim=1)
    print(f"{one.name}: trained in {one.seconds:.0f} s, proven constant {constant_of(energy.field):.4g}")
    print(f"  slopes of E in the box: mean {float(slopes.mean()):.3g}, largest seen {float(slopes.max()):.4g}")
    print(f"  W1 of draws from the tabulated density: {distance(draw_from_table(energy, 0), held):.4f}")
    points = torch.empty(0)
    for sampler in (ULA, MALA):
        random, taken, row = torch.Generator().manual_seed(2), 0, list[str]()
        points = energy.draw_evenly(DRAWS, random)
        for until in STEPS:
            points, taken = sampler(step, until - taken)(energy, points, random), until
            row.append(f"{until} steps {distance(points, held):.4f}")
        print(f"  W1 of {sampler.__name__}({step:g}) from even starts: {', '.join(row)}", flush=True)
    return points


def enclose(one: Trained) -> None:
    """Print the enclosure of log Z of an energy."""
    since = time.process_time()
    found = log_partition(one.energy, 2**18)
    print(
        f"  log Z of {one.name} lies in [{found.lower:.3f}, {found.upper:.3f}], {found.cells} cells, "
        f"{time.process_time() - since:.0f} s"
    )


def plot(found: list[Trained], draws: list[Tensor], path: Path) -> None:
    """The data, and for each energy its log density and draws of MALA."""
    mpl.use("Agg")
    from matplotlib import pyplot

    held = moons(DRAWS, seed=1).inputs.numpy()
    figure, axes = pyplot.subplots(1, len(found) + 1, figsize=(4 * (len(found) + 1), 3.6), layout="constrained")
    axes[0].scatter(*held.T, s=3, color="black")
    axes[0].set_title("data")
    for axis, one, drawn in zip(axes[1:], found, draws, strict=True):
        energy = one.energy
        _, masses = table(energy)
        picture = (masses - masses.max()).reshape(GRID, GRID).T.numpy()
        ends = [*zip(energy.low.tolist(), energy.high.tolist(), strict=True)]
        axis.imshow(np.maximum(picture, -30), origin="lower", extent=(*ends[0], *ends[1]), cmap="Blues")
        axis.scatter(*drawn.T.numpy(), s=2, color="darkorange")
        axis.set_title(f"{one.name}: log p (to -30) and draws of MALA", fontsize=9)
    for axis in axes:
        axis.set_xlim(*ends[0])
        axis.set_ylim(*ends[1])
        axis.set_aspect("equal")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constants", type=float, nargs="+", default=[20.0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--plot", type=Path)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    step = 0.5 / settings.constants[0] ** 2
    two = (moons(DRAWS, seed=seed).inputs.double() for seed in (1, 2))
    print(f"W1 of two sets of data: {distance(*two):.4f}")
    even = train([settings.constants[0]], 1)[0].energy.draw_evenly(DRAWS, torch.Generator().manual_seed(0))
    print(f"W1 of even draws to the data: {distance(even, moons(DRAWS, seed=1).inputs.double()):.4f}", flush=True)
    found = train(settings.constants, settings.steps)
    draws = [measure(one, step) for one in found]
    for one in found[:-1]:
        enclose(one)
    if settings.plot:
        plot(found, draws, settings.plot)


if __name__ == "__main__":
    main()
