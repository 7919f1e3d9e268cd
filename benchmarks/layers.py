"""Constrained layers beside those of other libraries: seconds, and the singular values they leave.

Claims: for the same mathematics no slower than the fastest peer; evaluation under `frozen` costs what the plain layer
costs; norms are at most one, where a peer's may not be. Each row is a training step (forward and backward) and an
evaluation of one layer, and the singular values of its weight after a few steps of Adam: a dense SVD for matrices, the
symbol on a 16 x 16 torus for 3 x 3 kernels.

    python benchmarks/layers.py [--channels 64 256] [--size 32] [--batch 8] [--peers FOLDER] [--threads 2]
    python benchmarks/layers.py --overhead        # on a GPU: the default convolution against a plain one, bfloat16

`--peers` is a folder with deel-torchlip 1.0.5, orthogonium 0.0.4, geotorch 0.4.0 and einops, for example from
`pip install --no-deps --target FOLDER deel-torchlip==1.0.5 orthogonium==0.0.4 geotorch==0.4.0 einops`.
"""

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import nn as lnn

Build = Callable[[], nn.Module]


def ours(channels: int) -> Iterator[tuple[str, str, Build]]:
    """Rows of this library: family, name, constructor. Families name the mathematics."""
    c = channels
    yield "matrix, plain", "torch.nn.Linear", lambda: nn.Linear(c, c)
    for family, method in (
        ("matrix, Björck", lnn.Bjorck()),
        ("matrix, Cayley", lnn.Cayley()),
        ("matrix, exponential", lnn.Exponential()),
        ("matrix, Householder", lnn.Householder()),
        ("matrix, QR", lnn.QR()),
        ("matrix, polar", lnn.Polar()),
        ("matrix, Newton-Schulz", lnn.NewtonSchulz()),
        ("matrix, AOL", lnn.AOL()),
        ("matrix, spectral", lnn.Spectral()),
    ):
        yield family, f"lipkit {method}", lambda method=method: lnn.Linear(c, c, method=method)
    yield "kernel, plain", "torch.nn.Conv2d", lambda: nn.Conv2d(c, c, 3, padding=1)
    for family, method in (
        ("kernel, AOL", lnn.AOL()),
        ("kernel, rescaling", lnn.Rescale(2)),
        ("kernel, RKO", lnn.RKO()),
        ("kernel, spectral", lnn.Spectral()),
    ):
        yield family, f"lipkit {method}", lambda method=method: lnn.Conv2d(c, c, 3, padding=1, method=method)


def peers(channels: int) -> Iterator[tuple[str, str, Build]]:
    """Rows of other libraries, where they are installed."""
    c = channels
    orthogonal = nn.utils.parametrizations.orthogonal
    for family, name in (("exponential", "matrix_exp"), ("Cayley", "cayley"), ("Householder", "householder")):
        yield (
            f"matrix, {family}",
            f"torch orthogonal({name})",
            lambda name=name: orthogonal(nn.Linear(c, c), "weight", name),
        )
    spectral = nn.utils.parametrizations.spectral_norm
    yield "matrix, spectral", "torch spectral_norm (lower bound)", lambda: spectral(nn.Linear(c, c))
    with contextlib.suppress(ImportError):
        from deel import torchlip

        yield "matrix, Björck", "torchlip SpectralLinear", lambda: torchlip.SpectralLinear(c, c)
        yield "kernel, RKO", "torchlip SpectralConv2d", lambda: torchlip.SpectralConv2d(c, c, 3, padding=1)
    with contextlib.suppress(ImportError):
        from orthogonium.layers import OrthoLinear
        from orthogonium.layers.conv.AOC.rko_conv import RKOConv2d
        from orthogonium.layers.conv.AOL.aol import AOLConv2D

        yield "matrix, Björck", "orthogonium OrthoLinear", lambda: OrthoLinear(c, c)
        yield "kernel, RKO", "orthogonium RKOConv2d", lambda: RKOConv2d(c, c, 3, padding=1, padding_mode="zeros")
        yield "kernel, AOL", "orthogonium AOLConv2D", lambda: AOLConv2D(c, c, 3, padding=1, padding_mode="zeros")
    with contextlib.suppress(ImportError):
        import geotorch

        def geo() -> nn.Module:
            layer = nn.Linear(c, c)
            geotorch.orthogonal(layer, "weight")
            return layer

        yield "matrix, exponential", "geotorch orthogonal", geo


def spread(layer: nn.Module) -> tuple[float, float]:
    """The largest and the smallest singular value of the weight as an operator."""
    weight = layer.weight.detach().to(torch.float64)
    if weight.ndim == 4:
        weight = torch.fft.fft2(weight, s=(16, 16)).permute(2, 3, 0, 1)
    values = torch.linalg.svdvals(weight)
    return float(values.max()), float(values.min())


def train(layer: nn.Module, x: Tensor, steps: int) -> None:
    """A few steps towards random targets, so that weights are not the initial ones."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) - torch.randn_like(x)).square().mean().backward()
        optimizer.step()


def step(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad()
    layer(x).square().sum().backward()


def evaluate(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)


def table(channels: int, size: int, batch: int, device: str) -> None:
    """All rows for one number of channels, families together."""
    rows = sorted([*ours(channels), *peers(channels)], key=lambda row: row[0])
    print(f"\n{channels} channels, {size} x {size}, batch {batch}, float32")
    print(f"{'family':24} {'layer':40} {'step ms':>9} {'eval ms':>9} {'frozen':>9}  {'sigma max - 1':>13} {'min':>8}")
    for family, name, build in rows:
        torch.manual_seed(0)
        layer = build().to(device)
        shape = (batch * 16, channels) if family.startswith("matrix") else (batch, channels, size, size)
        x = torch.randn(shape, device=device)
        train(layer, x, steps=5)
        seconds, _ = best_of(lambda layer=layer, x=x: step(layer, x), repeats=5)
        layer.eval()
        once, _ = best_of(lambda layer=layer, x=x: evaluate(layer, x), repeats=5)
        frozen = "-"
        if "lipkit" in name:
            with lnn.frozen(layer):
                held, _ = best_of(lambda layer=layer, x=x: evaluate(layer, x), repeats=5)
            frozen = f"{held * 1e3:.2f}"
        top, low = spread(layer)
        print(f"{family:24} {name:40} {seconds * 1e3:9.2f} {once * 1e3:9.2f} {frozen:>9}  {top - 1:13.1e} {low:8.4f}")


def overhead(channels: int, size: int, batch: int) -> None:
    """The default convolution against nn.Conv2d under bfloat16 autocast, eager and compiled."""
    x = torch.randn(batch, channels, size, size, device="cuda").to(memory_format=torch.channels_last)
    x.requires_grad_()
    layers: dict[str, Build] = {
        "torch.nn.Conv2d": lambda: nn.Conv2d(channels, channels, 3, padding=1),
        "lipkit default": lambda: lnn.Conv2d(channels, channels, 3, padding=1),
        "lipkit RKO": lambda: lnn.Conv2d(channels, channels, 3, padding=1, method=lnn.RKO()),
    }
    print(f"\nbfloat16 autocast, {channels} channels, {size} x {size}, batch {batch}: forward and backward")
    for how in ("eager", "compiled"):
        base = None
        for name, build in layers.items():
            layer = build().cuda().to(memory_format=torch.channels_last)
            program = torch.compile(layer, fullgraph=True) if how == "compiled" else layer

            def once(program: Callable[[Tensor], Tensor] = program) -> None:
                with torch.autocast("cuda", torch.bfloat16):
                    y = program(x)
                y.backward(torch.ones_like(y))

            for _ in range(5):
                once()
            seconds, _ = best_of(lambda once=once: [once() for _ in range(20)], repeats=3)
            base = seconds if base is None else base
            memory = torch.cuda.max_memory_allocated() / 2**20
            print(
                f"{how:9} {name:18} {seconds / 20 * 1e3:8.3f} ms  {seconds / base:5.2f}x  peak {memory:.0f} MiB",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers")
    parser.add_argument("--overhead", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.peers is not None:
        sys.path.insert(0, args.peers)
    torch.set_num_threads(args.threads)
    print(machine())
    if args.overhead:
        overhead(256, args.size, 256)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for channels in args.channels:
        table(channels, args.size, args.batch, device)


if __name__ == "__main__":
    main()
