"""Networks built from defaults: how well they learn beside deel-torchlip's, and what is left of a gradient in depth.

    python benchmarks/defaults.py --data FOLDER [--loss hkr] [--seeds 0 1 2]      MNIST: accuracy, clean and certified
    python benchmarks/defaults.py --data FOLDER --depth                          gradients after 8 steps of training

The network is that of torchlip's tutorial (two convolutions, norm pooling, 1568-64-10, sorted pairs), from the default
layers of each side. Both are trained by Adam on the first 10,000 images for 3 epochs in batches of 256, with the same
loss in the same process. The first 2,000 images of the test set count. A label is certified at a radius if its lead on
every rival j exceeds the radius times ||w_y - w_j||, w the rows of the last layer; everything before it is taken to
have constant one, which lipkit proves and torchlip estimates. Without torchlip the script runs lipkit alone.
"""

import argparse
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.data import mnist
from lipkit.losses import EMMA, MulticlassHinge, MulticlassHKR, TauCrossEntropy

RADII = (0.0, 0.25, 0.5, 1.0, 1.58)
BATCH = 256
DEPTHS = (4, 10, 20)
# Channels and side of an image in the networks that measure depth.
CHANNELS = 16
SIDE = 7
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def lipkit_network() -> nn.Module:
    """The tutorial's network from lipkit's defaults."""
    return lnn.Sequential(
        *(lnn.Conv2d(1, 16, 3, padding=1), lnn.MaxMin(), lnn.L2NormPool2d(2)),
        *(lnn.Conv2d(16, 32, 3, padding=1), lnn.MaxMin(), lnn.L2NormPool2d(2)),
        *(nn.Flatten(), lnn.Linear(1568, 64), lnn.MaxMin(), lnn.Linear(64, 10)),
    )


def torchlip_network() -> nn.Module:
    """The same from torchlip's."""
    from deel import torchlip  # pyright: ignore[reportMissingImports]

    return torchlip.Sequential(
        *(torchlip.SpectralConv2d(1, 16, 3, padding=1), torchlip.GroupSort2(), torchlip.ScaledL2NormPool2d((2, 2))),
        *(torchlip.SpectralConv2d(16, 32, 3, padding=1), torchlip.GroupSort2(), torchlip.ScaledL2NormPool2d((2, 2))),
        *(nn.Flatten(), torchlip.SpectralLinear(1568, 64), torchlip.GroupSort2(), torchlip.SpectralLinear(64, 10)),
    )


def pair_constants(model: nn.Module) -> Tensor:
    """||w_a - w_b|| of the rows of the last layer."""
    last = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    weight = last.weight.detach()
    return torch.linalg.vector_norm(weight[:, None] - weight[None], dim=2)


def emma(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """EMMA at radius 1."""
    return EMMA(1.0)(logits, labels, pair_constants(model))


Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]
LOSSES: dict[str, Objective] = {
    "hkr": lambda _, logits, labels: MulticlassHKR.torchlip(1.0, 0.98)(logits, labels),
    "tau": lambda _, logits, labels: TauCrossEntropy(10.0)(logits, labels),
    "hinge": lambda _, logits, labels: MulticlassHinge(0.5)(logits, labels),
    "emma": emma,
}


def train(model: nn.Module, loss: Objective, data: Data, rate: float, seed: int) -> None:
    """Three epochs of Adam."""
    inputs, labels, _, _ = data
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(3):
        for rows in torch.randperm(len(inputs), generator=generator).split(BATCH):
            optimizer.zero_grad()
            loss(model, model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracies(model: nn.Module, data: Data) -> list[float]:
    """Percent of the test images that are right, and certified at each radius."""
    _, _, inputs, labels = data
    logits, constants = model(inputs), pair_constants(model)
    leads = logits.gather(1, labels[:, None]) - logits
    radii = (leads / constants[labels].clamp(min=1e-9)).scatter(1, labels[:, None], math.inf).amin(1)
    return [100 * float((radii > radius).float().mean()) for radius in RADII]


def compare(data: Data, losses: Sequence[str], seeds: Sequence[int]) -> None:
    """One row for each loss, library and rate: means over seeds."""
    sides: list[tuple[str, Callable[[], nn.Module], float]] = [("lipkit", lipkit_network, 1e-3)]
    if importlib.util.find_spec("deel") is None:
        print("deel-torchlip is not installed: lipkit alone.")
    else:
        sides += [("torchlip", torchlip_network, 1e-3), ("torchlip", torchlip_network, 3e-3)]
    print("| loss | network | rate | clean | " + " | ".join(f"at {r:g}" for r in RADII[1:]) + " |")
    for name in losses:
        for side, build, rate in sides:
            found: list[list[float]] = []
            for seed in seeds:
                torch.manual_seed(seed)
                model = build()
                train(model, LOSSES[name], data, rate, seed)
                found.append(accuracies(model, data))
            means = " | ".join(f"{sum(column) / len(seeds):.1f}" for column in zip(*found, strict=True))
            print(f"| {name} | {side} | {rate:g} | {means} |", flush=True)


# One layer of a deep network on 16 channels.
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "`Conv2d`, the default (`AOC`)": lambda: _sorted(lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)),
    "the same, circular padding": lambda: _sorted(
        lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, padding_mode="circular")
    ),
    "`Conv2d` by `SOC()`": lambda: _sorted(lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, method=lnn.SOC())),
    "`Conv2d` by `AOL()`": lambda: _sorted(lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, method=lnn.AOL())),
    "`Conv2d` by `RKO()`": lambda: _sorted(lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, method=lnn.RKO())),
    "`Conv2d` by `Spectral()`": lambda: _sorted(lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, method=lnn.Spectral())),
    "`Conv2d` by `LinearResidual()`": lambda: _sorted(
        lnn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, method=lnn.LinearResidual())
    ),
    "`SLLConv`": lambda: lnn.SLLConv(CHANNELS, 3),
    "`CPLConv`": lambda: lnn.CPLConv(CHANNELS, 3),
    "`ShiftBlock`": lambda: lnn.ShiftBlock(CHANNELS),
    "`Linear`, the default (`Bjorck`)": lambda: nn.Sequential(
        nn.Flatten(),
        _sorted(lnn.Linear(CHANNELS * SIDE**2, CHANNELS * SIDE**2)),
        nn.Unflatten(1, (CHANNELS, SIDE, SIDE)),
    ),
}


def _sorted(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, lnn.MaxMin())


def depth(data: Data) -> None:
    """The part of a gradient that comes through a stack of layers, before training and after 8 steps."""
    print("| layer | " + " | ".join(f"depth {d}" for d in DEPTHS) + " |")
    for name, layer in LAYERS.items():
        cells: list[str] = []
        for count in DEPTHS:
            torch.manual_seed(0)
            trunk = nn.Sequential(lnn.SpaceToDepth(4), *(layer() for _ in range(count)))
            model = nn.Sequential(trunk, nn.Flatten(), lnn.Linear(CHANNELS * SIDE**2, 10))
            before = kept_gradient(trunk, data)
            steps(model, data, 8)
            cells.append(f"{before:.2g}, {kept_gradient(trunk, data):.2g}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def steps(model: nn.Module, data: Data, count: int) -> None:
    """Some steps of Adam at 1e-3 with the loss of the first comparison."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(count):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        optimizer.zero_grad()
        LOSSES["hkr"](model, model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()


def kept_gradient(trunk: nn.Module, data: Data) -> float:
    """||J' v|| / ||v||, root mean square over images, for random v."""
    inputs = data[2][:64].clone().requires_grad_()
    out = trunk(inputs)
    v = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(out, inputs, v)
    return float(torch.linalg.vector_norm(gradient) / torch.linalg.vector_norm(v))


def main() -> None:
    """Read the arguments, and run one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the four IDX files of MNIST")
    parser.add_argument("--loss", choices=LOSSES, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--depth", action="store_true", help="gradients in depth instead")
    given: Any = parser.parse_args()
    train_set, test_set = mnist(given.data), mnist(given.data, train=False)
    data = (train_set.inputs[:10000], train_set.labels[:10000], test_set.inputs[:2000], test_set.labels[:2000])
    if given.depth:
        depth(data)
    else:
        compare(data, given.loss or tuple(LOSSES), given.seeds)


if __name__ == "__main__":
    main()
