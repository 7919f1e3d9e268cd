"""Deep all-convolutional networks by each method: accuracy, certified accuracy, and what is left of a gradient.

    python benchmarks/depth.py --data FOLDER [--depths 4 10 20 50] [--methods AOL RKO AOC] [--steps 100]

Blocks of pixels become channels (16 for the 28 x 28 images of MNIST, 4 for scikit-learn's digits without --data), then
come `depth` convolutions of kernel 3 that keep the size, with sorted pairs, and a linear layer. Adam at 1e-3, batches
of 128, a cross-entropy of temperature 1/10. A label is certified if its lead on every rival exceeds the radius times
||w_y - w_j||, w the rows of the last layer: everything before it has constant one. Columns: percent right and
certified on the test images; ||J'v|| / ||v|| through the convolutions for random v, before and after training;
milliseconds of a step and of the weights in it, forward and backward; megabytes kept for the backward pass.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from defaults import accuracies, kept_gradient
from layers import memory
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.data import digits, mnist
from lipkit.losses import TauCrossEntropy

BATCH = 128
RADII_SHOWN = {0.25: 1, 0.5: 2}
LOSS = TauCrossEntropy(10.0)
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def images(folder: Path | None) -> tuple[Data, int]:
    """Training and test images with labels, and the side of the blocks that become channels."""
    if folder is None:
        whole = digits()
        return (whole.inputs[:1297], whole.labels[:1297], whole.inputs[1297:], whole.labels[1297:]), 2
    train, test = mnist(folder), mnist(folder, train=False)
    return (train.inputs[:10000], train.labels[:10000], test.inputs[:2000], test.labels[:2000]), 4


def network(
    method: lnn.WeightMethod, depth: int, block: int, side: int, mode: Literal["zeros", "circular"]
) -> tuple[nn.Module, nn.Module]:
    """The convolutions, and the whole network."""
    c = block * block
    parts = [
        part
        for _ in range(depth)
        for part in (lnn.Conv2d(c, c, 3, padding=1, padding_mode=mode, method=method), lnn.MaxMin())
    ]
    trunk = nn.Sequential(lnn.SpaceToDepth(block), *parts)
    return trunk, nn.Sequential(trunk, nn.Flatten(), lnn.Linear(c * (side // block) ** 2, 10))


def train(model: nn.Module, data: Data, steps: int, rate: float) -> float:
    """Steps of Adam; the milliseconds of the fastest."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    best = float("inf")
    for _ in range(steps):
        rows = torch.randint(len(data[0]), (BATCH,), generator=generator)
        start = time.perf_counter()
        optimizer.zero_grad()
        LOSS(model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    model.eval()
    return best * 1e3


def weights_alone(trunk: nn.Module) -> float:
    """Milliseconds to compute the weights of all convolutions, and their derivative."""
    layers = [part for part in trunk.modules() if isinstance(part, lnn.Conv2d)]
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for layer in layers:
            weight = layer.weight
            weight.backward(torch.ones_like(weight))
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> None:
    """Read the arguments, and print a row for each method and depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the four IDX files of MNIST; default: small digits")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 10, 20, 50])
    parser.add_argument("--methods", nargs="+", default=["AOL", "RKO", "BCOP", "AOC", "SOC"], help="names in lipkit.nn")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--mode", choices=["zeros", "circular"], default="zeros")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given: Any = parser.parse_args()
    data, block = images(given.data)
    shown = " | ".join(f"at {radius:g}" for radius in RADII_SHOWN)
    print(f"{given.steps} steps, {given.mode}, {torch.get_num_threads()} threads")
    print(f"| depth | method | clean | {shown} | gradient before | after | ms a step | ms of weights | MB |")
    print("|---|---|---|" + "---|" * len(RADII_SHOWN) + "---|---|---|---|---|")
    for depth in given.depths:
        for name in given.methods:
            cells = [row(getattr(lnn, name)(), depth, data, block, given, seed) for seed in given.seeds]
            means = [sum(column) / len(cells) for column in zip(*cells, strict=True)]
            print(f"| {depth} | `{name}` | " + " | ".join(f"{value:.3g}" for value in means) + " |", flush=True)


def row(method: lnn.WeightMethod, depth: int, data: Data, block: int, given: Any, seed: int) -> Sequence[float]:
    """The numbers of one network."""
    torch.manual_seed(seed)
    trunk, model = network(method, depth, block, data[0].shape[-1], given.mode)
    before = kept_gradient(trunk, data)
    took = train(model, data, given.steps, given.rate)
    found = accuracies(model, data)
    kept = memory(model, data[0][:BATCH]) / 1e6
    right = [found[0], *(found[place] for place in RADII_SHOWN.values())]
    return [*right, before, kept_gradient(trunk, data), took, weights_alone(trunk), kept]


if __name__ == "__main__":
    main()
