"""Each kind of convolution beside the same kind of other libraries: how orthogonal it is, time and memory.

    python benchmarks/peer_convolutions.py --peers FOLDER [--channels 64] [--size 16] [--batch 8] [--rounds 7]
        [--device cuda] [--only grouped dilated transposed `LOT` `BRO`]

Claim: the norms of ours are at most one, and for the same mathematics a step is no slower than the fastest peer. Rows
that miss it are bold. Both sides run in one process on one thread, in turns: processor milliseconds of the fastest
round, for a training step (forward and backward) and for an evaluation under `torch.no_grad()`, and the memory that a
step keeps for the backward pass; on a GPU, milliseconds of the clock, and the peak of a step. Layers have circular
borders where nothing else is said, and equal widths, and take a step of Adam after each round. Kinds without a peer
have rows of ours alone. Singular values are those of the map itself on the torus: its responses to single pixels,
transformed. Peers:
`pip install --no-deps --target FOLDER deel-torchlip==1.0.5 orthogonium==0.0.4 einops`.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from layers import evaluate, memory, step
from timing import machine
from torch import Tensor, nn

from lipkit import nn as lnn

Build = Callable[[], nn.Module]
AROUND: dict[str, Any] = {"padding": 1, "padding_mode": "circular"}


@dataclass(frozen=True)
class Kind:
    """One kind of convolution: its stride, whether it is linear, and the layers of each library, ours first."""

    name: str
    layers: dict[str, Build]
    stride: int = 1
    # Singular values are measured of linear layers on a torus.
    torus: bool = True
    transposed: bool = False


@dataclass
class Timed:
    """The measurements of one layer."""

    step: float = float("inf")
    evaluation: float = float("inf")
    bytes: int = 0
    # Smallest and largest singular value, where the layer is linear on a torus.
    values: tuple[float, float] | None = None


def kinds(c: int, size: int) -> Iterator[Kind]:
    """Every kind that a peer has; needs orthogonium and deel-torchlip."""
    from deel import torchlip
    from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d
    from orthogonium.layers.conv.adaptiveSOC import AdaptiveSOCConv2d
    from orthogonium.layers.conv.AOC import FastBlockConv2d, RKOConv2d
    from orthogonium.layers.conv.AOL import AOLConv2D
    from orthogonium.layers.conv.SLL import SDPBasedLipschitzResBlock
    from orthogonium.legacy.cayley_ortho_conv import Cayley

    def ours(method: lnn.WeightMethod, out: int = c, taps: int = 3, **more: Any) -> Build:
        return lambda: lnn.Conv2d(c, out, taps, method=method, **(more or AROUND))

    half = {"stride": 2, "padding": 1, "padding_mode": "circular"}
    yield Kind(
        "`AOC`, 3 x 3", {"lipkit": ours(lnn.AOC()), "orthogonium": lambda: AdaptiveOrthoConv2d(c, c, 3, **AROUND)}
    )
    yield Kind(
        "`AOC`, 4 x 4, stride 2",
        {
            "lipkit": ours(lnn.AOC(), 2 * c, 4, **half),
            "orthogonium": lambda: AdaptiveOrthoConv2d(c, 2 * c, 4, **half),
        },
        stride=2,
    )
    yield Kind("`BCOP`, 3 x 3", {"lipkit": ours(lnn.BCOP()), "orthogonium": lambda: FastBlockConv2d(c, c, 3, **AROUND)})
    # Theirs writes a kernel of 7 x 7 out, and pads by what it is told for 3 x 3.
    yield Kind(
        "`SOC`, 3 x 3",
        {"lipkit": ours(lnn.SOC()), "orthogonium": lambda: AdaptiveSOCConv2d(c, c, 3, padding=3)},
    )
    yield Kind(
        "Cayley in Fourier space, 3 x 3",
        {"lipkit": ours(lnn.FourierCayley((size, size))), "orthogonium": lambda: Cayley(c, c, 3)},
    )
    yield Kind(
        "`RKO`, 2 x 2, stride 2",
        {
            "lipkit": ours(lnn.RKO(), 4 * c, 2, stride=2),
            "orthogonium": lambda: RKOConv2d(c, 4 * c, 2, stride=2, padding=0),
            "torchlip": lambda: torchlip.SpectralConv2d(c, 4 * c, 2, stride=2, padding=0),
        },
        stride=2,
    )
    yield Kind(
        "`RKO`, 3 x 3",
        {
            "lipkit": ours(lnn.RKO()),
            "orthogonium": lambda: RKOConv2d(c, c, 3, **AROUND),
            "torchlip": lambda: torchlip.SpectralConv2d(c, c, 3, **AROUND),
        },
    )
    yield Kind("`AOL`, 3 x 3", {"lipkit": ours(lnn.AOL()), "orthogonium": lambda: AOLConv2D(c, c, 3, **AROUND)})
    yield Kind(
        "`Frobenius`, 3 x 3",
        {"lipkit": ours(lnn.Frobenius()), "torchlip": lambda: torchlip.FrobeniusConv2d(c, c, 3, **AROUND)},
    )
    yield Kind(
        "`SLLConv`, 3 x 3, zero borders",
        {"lipkit": lambda: lnn.SLLConv(c, 3), "orthogonium": lambda: SDPBasedLipschitzResBlock(c, 1)},
        torus=False,
    )
    for name, more in (
        ("`AOC`, 3 x 3, grouped by 4", {"groups": 4, **AROUND}),
        ("`AOC`, 3 x 3, dilated by 2", {"dilation": 2, "padding": 2, "padding_mode": "circular"}),
    ):
        yield Kind(
            name,
            {
                "lipkit": ours(lnn.AOC(), **more),
                "orthogonium": lambda more=more: AdaptiveOrthoConv2d(c, c, 3, **more),
            },
        )
    # Kernels as large as the stride have no borders; others have zeros there, which theirs cannot exchange.
    for name, taps, sides in (
        ("`AOC`, 2 x 2, stride 2, transposed", 2, 0),
        ("`AOC`, 4 x 4, stride 2, transposed, zero borders", 4, 1),
    ):
        yield Kind(
            name,
            {
                "lipkit": lambda k=taps, p=sides: lnn.ConvTranspose2d(2 * c, c, k, 2, p),
                "orthogonium": lambda k=taps, p=sides: AdaptiveOrthoConvTranspose2d(2 * c, c, k, 2, p),
            },
            stride=2,
            torus=not sides,
            transposed=True,
        )
    yield Kind("`LOT`, 3 x 3", {"lipkit": ours(lnn.LOT((size, size)))})
    yield Kind("`BRO`, 3 x 3", {"lipkit": ours(lnn.BRO((size, size)))})


@torch.no_grad()
def singular_values(layer: nn.Module, x: Tensor, kind: Kind) -> tuple[float, float]:
    """The smallest and the largest of min(rows, columns), of a linear layer on a torus.

    A layer that commutes with moves by `stride` is known from its responses to single pixels in one cell: transformed,
    they are one matrix for each frequency. Of a transposed layer a cell is one of the outputs.
    """
    channels, size = x.shape[1], x.shape[2]
    cell = 1 if kind.transposed else kind.stride
    pixels = x.new_zeros(channels, cell, cell, channels, size, size)
    for c in range(channels):
        for i in range(cell):
            for j in range(cell):
                pixels[c, i, j, c, i, j] = 1
    answers = layer(pixels.flatten(0, 2)) - layer(torch.zeros_like(x[:1]))
    if kind.transposed:
        answers = nn.functional.pixel_unshuffle(answers, kind.stride)
    if answers.shape[-1] != size // cell:
        raise ValueError(f"The layer gives {answers.shape[-1]} pixels of {size} with stride {cell}: no torus.")
    symbol = torch.fft.rfft2(answers.to(torch.float64)).permute(2, 3, 0, 1)
    gram = symbol @ symbol.mH if symbol.shape[-2] <= symbol.shape[-1] else symbol.mH @ symbol
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    return float(values.min()), float(values.max())


def compared(kind: Kind, x: Tensor, rounds: int, most: float) -> dict[str, Timed | str]:
    """All layers of a kind, one after the other in each round; a sentence for those that are left out."""
    made: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
    found: dict[str, Timed | str] = {}
    for name, build in kind.layers.items():
        torch.manual_seed(0)
        layer = build().to(x.device)
        seconds = spent(lambda layer=layer: step(layer, x))
        if seconds > most:
            found[name] = f"a step takes {seconds:.1f} s"
        else:
            made[name], found[name] = (layer, torch.optim.Adam(layer.parameters(), lr=1e-3)), Timed()
    for _ in range(rounds):
        for name, (layer, optimizer) in made.items():
            row = found[name]
            assert isinstance(row, Timed)
            row.step = min(row.step, spent(lambda layer=layer: step(layer, x)))
            optimizer.step()
    for name, (layer, _) in made.items():
        row = found[name]
        assert isinstance(row, Timed)
        resting = torch.cuda.memory_allocated() if x.is_cuda else 0
        row.bytes = memory(layer, x) - resting
        layer.eval()
        evaluate(layer, x)
    for _ in range(rounds):
        for name, (layer, _) in made.items():
            row = found[name]
            assert isinstance(row, Timed)
            row.evaluation = min(row.evaluation, spent(lambda layer=layer: evaluate(layer, x)))
    for name, (layer, _) in made.items():
        row = found[name]
        assert isinstance(row, Timed)
        row.values = singular_values(layer, x, kind) if kind.torus else None
    return found


def spent(run: Callable[[], object]) -> float:
    """Seconds of the processor, which other programs move least; if there is a GPU, of the clock, until it is done."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else None
    clock = time.process_time if wait is None else time.perf_counter
    start = clock()
    run()
    if wait is not None:
        wait()
    return clock() - start


def line(kind: Kind, name: str, row: Timed | str, all_rows: dict[str, Timed | str]) -> str:
    """One row of the table; bold where ours is slower, or keeps more, than the best peer by more than a tenth."""
    if isinstance(row, str):
        return f"| {kind.name} | {name} | left out: {row} | | | | |"
    rivals = [other for key, other in all_rows.items() if key != "lipkit" and isinstance(other, Timed)]

    def cell(own: float, best: float, text: str) -> str:
        return f"**{text}**" if name == "lipkit" and own > 1.1 * best else text

    cells = [
        cell(own, min((getattr(rival, field) for rival in rivals), default=float("inf")), text)
        for field, own, text in (
            ("step", row.step, f"{row.step * 1e3:.2f}"),
            ("evaluation", row.evaluation, f"{row.evaluation * 1e3:.2f}"),
            ("bytes", row.bytes, f"{row.bytes / 2**20:.2f}"),
        )
    ]
    low, top = ("", "") if row.values is None else (f"{row.values[0]:.6f}", f"{row.values[1] - 1:+.1e}")
    return f"| {kind.name} | {name} | {low} | {top} | " + " | ".join(cells) + " |"


def main() -> None:
    """Read the arguments, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=float, default=3.0, help="leave out layers whose first step takes more seconds")
    parser.add_argument("--only", nargs="+", default=[""], help="kinds whose name contains one of these")
    parser.add_argument("--peers", help="folder with the other libraries")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.peers is not None:
        sys.path.insert(0, given.peers)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Singular values are measured with convolutions, whose default on a GPU has three digits.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    shape = f"{given.channels} channels, {given.size} x {given.size}, batch {given.batch}"
    print(f"{machine()}; {shape}, {given.rounds} rounds")
    print("| kind | library | smallest | largest - 1 | step, ms | evaluation, ms | MiB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    wide = torch.randn(given.batch, 2 * given.channels, given.size, given.size, device=given.device)
    for kind in kinds(given.channels, given.size):
        x = wide if kind.transposed else wide[:, : given.channels].contiguous()
        if not any(part in kind.name for part in given.only):
            continue
        rows = compared(kind, x, given.rounds, given.most)
        for name, row in rows.items():
            print(line(kind, name, row, rows), flush=True)


if __name__ == "__main__":
    main()
