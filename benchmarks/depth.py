"""Deep networks by each family of layers: accuracy, certified accuracy, and what is left of a gradient.

    python benchmarks/depth.py --data FOLDER [--depths 4 10 20 50] [--families AOL RKO AOC] [--steps 100]

Blocks of pixels become channels (16 for the 28 x 28 images of MNIST, 4 for scikit-learn's digits without --data), then
come `depth` layers that keep the size, and a linear layer. The layers are convolutions of kernel 3 with sorted pairs,
or residual layers and `ShiftBlock` with an activation of their own. Those in Fourier space have circular borders, the
others what --mode says; `Linear` is one matrix for the whole image, with sorted pairs. Adam at 1e-3, batches of 128, a
cross-entropy of temperature 1/10. A label is certified if its lead on every rival exceeds the radius times
||w_y - w_j||, w the rows of the last layer: everything before it has constant one. Columns: percent right and
certified on the test images; ||J'v|| / ||v|| through these layers for random v, before and after training;
milliseconds of a step and of the weights in it, forward and backward; megabytes kept for the backward pass.
"""

import argparse
import math
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
FAMILIES = ("AOL", "RKO", "BCOP", "AOC", "SOC", "LOT", "BRO", "FourierCayley", "ShiftBlock", "SLLConv", "CPLConv")
LOSS = TauCrossEntropy(10.0)
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def images(folder: Path | None) -> tuple[Data, int]:
    """Training and test images with labels, and the side of the blocks that become channels."""
    if folder is None:
        whole = digits()
        return (whole.inputs[:1297], whole.labels[:1297], whole.inputs[1297:], whole.labels[1297:]), 2
    train, test = mnist(folder), mnist(folder, train=False)
    return (train.inputs[:10000], train.labels[:10000], test.inputs[:2000], test.labels[:2000]), 4


def layer(family: str, channels: int, side: int, mode: Literal["zeros", "circular"]) -> nn.Module:
    """One layer of a family, with its activation."""
    match family:
        case "ShiftBlock":
            return lnn.ShiftBlock(channels)
        case "SLLConv":
            return lnn.SLLConv(channels, 3)
        case "CPLConv":
            return lnn.CPLConv(channels, 3)
        case "Linear":
            image = channels, side, side
            matrix = lnn.Linear(math.prod(image), math.prod(image))
            return nn.Sequential(nn.Flatten(), matrix, nn.Unflatten(1, image), lnn.MaxMin())
        case "LOT" | "BRO" | "FourierCayley":
            method, mode = getattr(lnn, family)((side, side)), "circular"
        case _:
            method = getattr(lnn, family)()
    return nn.Sequential(lnn.Conv2d(channels, channels, 3, padding=1, padding_mode=mode, method=method), lnn.MaxMin())


def network(
    family: str, depth: int, block: int, side: int, mode: Literal["zeros", "circular"]
) -> tuple[nn.Module, nn.Module]:
    """The layers, and the whole network."""
    c, left = block * block, side // block
    trunk = nn.Sequential(lnn.SpaceToDepth(block), *(layer(family, c, left, mode) for _ in range(depth)))
    return trunk, nn.Sequential(trunk, nn.Flatten(), lnn.Linear(c * left**2, 10))


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
    """Milliseconds to compute the weights of all layers, and their derivative; 0 for weights inside a layer."""
    layers = [part for part in trunk.modules() if isinstance(part, lnn.Conv2d | lnn.Linear)]
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for layer in layers:
            weight = layer.weight
            weight.backward(torch.ones_like(weight))
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> None:
    """Read the arguments, and print a row for each family and depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the four IDX files of MNIST; default: small digits")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 10, 20, 50])
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="names in lipkit.nn")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--mode", choices=["zeros", "circular"], default="zeros")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given: Any = parser.parse_args()
    data, block = images(given.data)
    shown = " | ".join(f"at {radius:g}" for radius in RADII_SHOWN)
    print(f"{given.steps} steps, {given.mode}, {torch.get_num_threads()} threads")
    print(f"| depth | family | clean | {shown} | gradient before | after | ms a step | ms of weights | MB |")
    print("|---|---|---|" + "---|" * len(RADII_SHOWN) + "---|---|---|---|---|")
    for depth in given.depths:
        for name in given.families:
            cells = [row(name, depth, data, block, given, seed) for seed in given.seeds]
            means = [sum(column) / len(cells) for column in zip(*cells, strict=True)]
            print(f"| {depth} | `{name}` | " + " | ".join(f"{value:.3g}" for value in means) + " |", flush=True)


def row(family: str, depth: int, data: Data, block: int, given: Any, seed: int) -> Sequence[float]:
    """The numbers of one network."""
    torch.manual_seed(seed)
    trunk, model = network(family, depth, block, data[0].shape[-1], given.mode)
    before = kept_gradient(trunk, data)
    took = train(model, data, given.steps, given.rate)
    found = accuracies(model, data)
    kept = memory(model, data[0][:BATCH]) / 1e6
    right = [found[0], *(found[place] for place in RADII_SHOWN.values())]
    return [*right, before, kept_gradient(trunk, data), took, weights_alone(trunk), kept]


if __name__ == "__main__":
    main()
