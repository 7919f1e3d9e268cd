"""Every family of layers side by side: what it keeps of a gradient, time, memory, and what networks of it learn.

    python benchmarks/families.py --data FOLDER [--plot docs/guides/families.png] [--rows FILE] [--only LOT SLLConv]
    python benchmarks/families.py --sides 8 16 32 64 --only "AOC = BCOP" BRO    # time against the size of images

Kernels: 3 x 3 taps, circular borders. Matrices: 128 units. Columns:
- kept: ||J'v|| / ||v|| through ten layers, for random v, after training;
- time and memory: of a training step of one layer (processor time, the fastest of seven; bytes kept for the backward
  pass), as multiples of torch's own layer in the same process; kernels of 64 channels on 16 x 16, batch 8; matrices of
  256 units, batch 128;
- certified: percent of 2,000 test images of MNIST whose class is right and cannot change within 0.25, with four and
  with ten layers, after `--steps` steps of Adam at 1e-3 in batches of 128 on 10,000 images.

Images are padded to 32 x 32 and taken as 16 channels on 8 x 8; matrices come after an orthogonal one from 1024 to 128
units. Layers without an activation of their own are followed by sorted pairs. A label is certified if its lead on every
rival exceeds the radius times ||w_y - w_j||, w the rows of the last layer: everything before it has constant one. With
`--rows` measurements are kept in a file, and those in it are not made again.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from defaults import accuracies
from depth import BATCH, LOSS, RADII_SHOWN, Data
from families_figure import draw
from layers import memory, step
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.data import mnist

DEPTHS = (4, 10)
CHANNELS, SIDE, UNITS = 16, 8, 128
# Channels and side, or units, and the size of a batch, where time and memory are measured.
TIMED_KERNEL, TIMED_MATRIX = (8, 64, 16, 16), (128, 256)
Kernel = Callable[[int, int], nn.Module]
Matrix = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Family:
    """A name, the kind of its promise, and a layer for (channels, side) or for (units)."""

    name: str
    kind: str
    kernel: Kernel | None = None
    matrix: Matrix | None = None
    # Residual layers and shift blocks have an activation of their own.
    bent: bool = False


@dataclass(frozen=True)
class Row:
    """The measurements of one family; certified accuracies in the order of DEPTHS."""

    name: str
    kind: str
    dense: bool
    kept: float
    time: float
    memory: float
    clean: tuple[float, ...]
    certified: tuple[float, ...]


def _conv(method: Callable[[int], lnn.WeightMethod]) -> Kernel:
    return lambda c, side: lnn.Conv2d(c, c, 3, padding=1, padding_mode="circular", method=method(side))


def _linear(method: lnn.WeightMethod) -> Matrix:
    return lambda n: lnn.Linear(n, n, method=method)


ISOMETRY, ONE_SIZE, CONTRACTION, RESIDUAL = "orthogonal", "orthogonal, for one image size", "contraction", "residual"
FAMILIES = (
    Family("AOC = BCOP", ISOMETRY, _conv(lambda _: lnn.AOC())),
    Family("SOC", ISOMETRY, _conv(lambda _: lnn.SOC())),
    Family("ShiftBlock", ISOMETRY, lambda c, _: lnn.ShiftBlock(c), bent=True),
    Family("LOT", ONE_SIZE, _conv(lambda side: lnn.LOT((side, side)))),
    Family("BRO", ONE_SIZE, _conv(lambda side: lnn.BRO((side, side)))),
    Family("FourierCayley", ONE_SIZE, _conv(lambda side: lnn.FourierCayley((side, side)))),
    Family("AOL", CONTRACTION, _conv(lambda _: lnn.AOL())),
    Family("Rescale(2)", CONTRACTION, _conv(lambda _: lnn.Rescale(2))),
    Family("RKO", CONTRACTION, _conv(lambda _: lnn.RKO())),
    Family("Spectral", CONTRACTION, _conv(lambda _: lnn.Spectral())),
    Family("Frobenius", CONTRACTION, _conv(lambda _: lnn.Frobenius())),
    Family("LinearResidual", RESIDUAL, _conv(lambda _: lnn.LinearResidual())),
    Family("SLLConv", RESIDUAL, lambda c, _: lnn.SLLConv(c, 3, padding_mode="circular"), bent=True),
    Family("CPLConv", RESIDUAL, lambda c, _: lnn.CPLConv(c, 3, padding_mode="circular"), bent=True),
    Family("SandwichConv", RESIDUAL, lambda c, _: lnn.SandwichConv(c, c, 3, padding_mode="circular"), bent=True),
    Family("Bjorck", ISOMETRY, matrix=_linear(lnn.Bjorck())),
    Family("Cayley", ISOMETRY, matrix=_linear(lnn.Cayley())),
    Family("Householder", ISOMETRY, matrix=_linear(lnn.Householder())),
    Family("QR", ISOMETRY, matrix=_linear(lnn.QR())),
    Family("Polar", ISOMETRY, matrix=_linear(lnn.Polar())),
    Family("NewtonSchulz", ISOMETRY, matrix=_linear(lnn.NewtonSchulz())),
    Family("Exponential", ISOMETRY, matrix=_linear(lnn.Exponential())),
    Family("AOL", CONTRACTION, matrix=_linear(lnn.AOL())),
    Family("Spectral", CONTRACTION, matrix=_linear(lnn.Spectral())),
    Family("Frobenius", CONTRACTION, matrix=_linear(lnn.Frobenius())),
    Family("LinearResidual", RESIDUAL, matrix=_linear(lnn.LinearResidual())),
    Family("SLL", RESIDUAL, matrix=lnn.SLL, bent=True),
    Family("CPL", RESIDUAL, matrix=lnn.CPL, bent=True),
    Family("Sandwich", RESIDUAL, matrix=lambda n: lnn.Sandwich(n, n), bent=True),
)


def network(family: Family, depth: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The part before the layers, the layers, and the last linear one."""
    if family.kernel is not None:
        stem, last = lnn.SpaceToDepth(4), CHANNELS * SIDE**2
        layers = [family.kernel(CHANNELS, SIDE) for _ in range(depth)]
    else:
        assert family.matrix is not None
        stem, last = nn.Sequential(nn.Flatten(), lnn.Linear((4 * SIDE) ** 2, UNITS), lnn.MaxMin()), UNITS
        layers = [family.matrix(UNITS) for _ in range(depth)]
    trunk = nn.Sequential(*(part for layer in layers for part in ([layer] if family.bent else [layer, lnn.MaxMin()])))
    return stem, trunk, nn.Sequential(nn.Flatten(), lnn.Linear(last, 10))


def train(model: nn.Module, data: Data, steps: int) -> None:
    """Steps of Adam at 1e-3."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(data[0]), (BATCH,), generator=generator)
        optimizer.zero_grad()
        LOSS(model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
    model.eval()


def kept_gradient(stem: nn.Module, trunk: nn.Module, images: Tensor) -> float:
    """||J'v|| / ||v|| through the layers at images, root mean square, for random v."""
    hidden = stem(images).detach().requires_grad_()
    out = trunk(hidden)
    v = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(out, hidden, v)
    return float(torch.linalg.vector_norm(gradient) / torch.linalg.vector_norm(v))


def cost(layer: nn.Module, x: Tensor, steps: int = 7) -> tuple[float, float]:
    """Processor seconds of the fastest step of training, and the bytes that it keeps."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    best = float("inf")
    for _ in range(steps):
        start = time.process_time()
        step(layer, x)
        best = min(best, time.process_time() - start)
        # Free numbers move away from the start, where some methods need fewer steps.
        optimizer.step()
    return best, memory(layer, x)


def measure(family: Family, data: Data, steps: int) -> Row:
    """The row of one family."""
    found: list[tuple[float, list[float]]] = []
    for depth in DEPTHS:
        torch.manual_seed(0)
        stem, trunk, head = network(family, depth)
        model = nn.Sequential(stem, trunk, head)
        train(model, data, steps)
        found.append((kept_gradient(stem, trunk, data[2][:64]), accuracies(model, data)))
    torch.manual_seed(0)
    if family.kernel is not None:
        x, plain = torch.randn(TIMED_KERNEL), nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular")
        layer = family.kernel(TIMED_KERNEL[1], TIMED_KERNEL[2])
    else:
        assert family.matrix is not None
        x, plain = torch.randn(TIMED_MATRIX), nn.Linear(TIMED_MATRIX[1], TIMED_MATRIX[1])
        layer = family.matrix(TIMED_MATRIX[1])
    base, own = cost(plain, x, 30), cost(layer, x)
    # A plain layer keeps its input and its output, which `memory` leaves out.
    kept = 2 * x.numel() * x.element_size()
    return Row(
        family.name,
        family.kind,
        family.kernel is None,
        found[-1][0],
        own[0] / base[0],
        (own[1] + kept) / (base[1] + kept),
        tuple(values[0] for _, values in found),
        tuple(values[RADII_SHOWN[0.25]] for _, values in found),
    )


def sides(families: Sequence[Family], given: Sequence[int]) -> None:
    """A table of times on images of each side, as multiples of torch's convolution."""
    print("| side | plain, ms | " + " | ".join(f"`{family.name}`" for family in families) + " |")
    print("|---|" + "---:|" * (len(families) + 1))
    batch, channels = TIMED_KERNEL[:2]
    for side in given:
        x = torch.randn(batch, channels, side, side)
        base, _ = cost(nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular"), x, 8)
        made = [family.kernel(channels, side) for family in families if family.kernel is not None]
        times = " | ".join(f"{cost(layer, x, 3)[0] / base:.1f}" for layer in made)
        print(f"| {side} | {base * 1e3:.1f} | {times} |", flush=True)


def main() -> None:
    """Read the arguments, print a row for each family, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the four IDX files of MNIST")
    parser.add_argument("--sides", type=int, nargs="+", help="time kernels on images of these sides, and end")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", nargs="+", help="names of families")
    parser.add_argument("--rows", type=Path, help="file of measurements, read and written")
    parser.add_argument("--plot", type=Path)
    given: Any = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [family for family in FAMILIES if not given.only or family.name in given.only]
    if given.sides:
        sides([family for family in wanted if family.kernel is not None], given.sides)
        return
    if given.data is None:
        parser.error("--data is needed, but for --sides")
    parts = (mnist(given.data).at(range(10000)), mnist(given.data, train=False).at(range(2000)))
    images = [functional.pad(part.inputs, (2, 2, 2, 2)) for part in parts]
    data = (images[0], parts[0].labels, images[1], parts[1].labels)
    stored: list[dict[str, Any]] = json.loads(given.rows.read_text()) if given.rows and given.rows.exists() else []
    rows = [Row(**row) for row in stored]
    print("| | layer | kept by ten | time | memory | clean, 4 and 10 layers | certified at 0.25 |")
    print("|---|---|---:|---:|---:|---|---|")
    for family in wanted:
        known = [row for row in rows if (row.name, row.dense) == (family.name, family.kernel is None)]
        row = known[0] if known else measure(family, data, given.steps)
        if not known:
            rows.append(row)
        clean, sure = (" / ".join(f"{value:.1f}" for value in values) for values in (row.clean, row.certified))
        shape = "matrix" if row.dense else "kernel"
        numbers = f"{row.kept:.2g} | {row.time:.1f} | {row.memory:.1f} | {clean} | {sure}"
        print(f"| {shape}, {row.kind} | `{row.name}` | {numbers} |", flush=True)
        if given.rows:
            given.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if given.plot:
        order = {(family.name, family.kernel is None): i for i, family in enumerate(FAMILIES)}
        draw(sorted(rows, key=lambda row: order[row.name, row.dense]), given.plot)


if __name__ == "__main__":
    main()
