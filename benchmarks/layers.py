"""Constrained layers beside those of other libraries: seconds, memory, and the singular values they leave.

Claims: for the same mathematics no slower than the fastest peer; evaluation under `frozen` costs what the plain layer
costs; norms are at most one, where a peer's may not be. Convolutions in Fourier space are the exception: an evaluation
costs several plain ones, and formulas as printed, without a proof, train faster for Cayley and BRO. Each row is a
training step (forward and backward) and an evaluation of one layer, the memory of the step (on a GPU its peak;
elsewhere the bytes kept for the backward pass), and the singular values of its weight after five steps of Adam: a dense
SVD for matrices, the symbol for kernels.

    python benchmarks/layers.py [--channels 64 256] [--size 32] [--batch 8] [--peers FOLDER] [--threads 2] [--most 20]
    python benchmarks/layers.py --channels 64 256 1024 --size 8 32 --most 5 --plot layers.png    # on a GPU

Families called "circle" are convolutions with circular padding; "as printed" is the formula of the paper, in complex
arithmetic and without a proof. Rows whose step takes longer than `--most` seconds, or more memory than there is, are
left out and say so; with several numbers of channels that is foreseen from the last, by the cube and the square.
`--peers` is a folder with deel-torchlip 1.0.5, orthogonium 0.0.4, geotorch 0.4.0 and einops, for example from
`pip install --no-deps --target FOLDER deel-torchlip==1.0.5 orthogonium==0.0.4 geotorch==0.4.0 einops`.
"""

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from layer_figure import draw
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import nn as lnn

Build = Callable[[], nn.Module]


def ours(channels: int, size: int) -> Iterator[tuple[str, str, Build]]:
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
        ("kernel, BCOP", lnn.BCOP()),
        ("kernel, AOC", lnn.AOC()),
        ("kernel, SOC", lnn.SOC()),
    ):
        yield family, f"lipkit {method}", lambda method=method: lnn.Conv2d(c, c, 3, padding=1, method=method)
    around = {"padding": 1, "padding_mode": "circular"}
    yield "circle, plain", "torch.nn.Conv2d, circular", lambda: nn.Conv2d(c, c, 3, **around)
    for family, method in (
        ("circle, LOT", lnn.LOT((size, size))),
        ("circle, Cayley", lnn.FourierCayley((size, size))),
        ("circle, BRO", lnn.BRO((size, size))),
    ):
        yield family, f"lipkit {method}", lambda method=method: lnn.Conv2d(c, c, 3, **around, method=method)


def peers(channels: int, size: int) -> Iterator[tuple[str, str, Build]]:
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
    for family, formula in (("circle, Cayley", cayley), ("circle, LOT", newton), ("circle, BRO", reflector)):
        yield family, "as printed, complex64", lambda formula=formula: AsPrinted(c, size, formula)
    with contextlib.suppress(ImportError):
        from deel import torchlip

        yield "matrix, Björck", "torchlip SpectralLinear", lambda: torchlip.SpectralLinear(c, c)
        yield "kernel, RKO", "torchlip SpectralConv2d", lambda: torchlip.SpectralConv2d(c, c, 3, padding=1)
    with contextlib.suppress(ImportError):
        from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
        from orthogonium.layers.conv.AOC.rko_conv import RKOConv2d
        from orthogonium.layers.conv.AOL.aol import AOLConv2D

        yield "matrix, Björck", "orthogonium OrthoLinear", lambda: OrthoLinear(c, c)
        yield "kernel, RKO", "orthogonium RKOConv2d", lambda: RKOConv2d(c, c, 3, padding=1, padding_mode="zeros")
        yield "kernel, AOC", "orthogonium AdaptiveOrthoConv2d", lambda: AdaptiveOrthoConv2d(c, c, 3, padding=1)
        yield "kernel, AOL", "orthogonium AOLConv2D", lambda: AOLConv2D(c, c, 3, padding=1, padding_mode="zeros")
    with contextlib.suppress(ImportError):
        import geotorch

        def geo() -> nn.Module:
            layer = nn.Linear(c, c)
            geotorch.orthogonal(layer, "weight")
            return layer

        yield "matrix, exponential", "geotorch orthogonal", geo


def cayley(symbol: Tensor) -> Tensor:
    """(I + A)^-1 (I - A) with A = W - W*."""
    skew, identity = symbol - symbol.mH, torch.eye(symbol.shape[-1], dtype=symbol.dtype, device=symbol.device)
    return torch.linalg.solve(identity + skew, identity - skew)


def newton(symbol: Tensor, steps: int = 10) -> Tensor:
    """(W W*)^(-1/2) W by Newton's coupled iteration."""
    identity = torch.eye(symbol.shape[-1], dtype=symbol.dtype, device=symbol.device)
    gram = symbol @ symbol.mH
    size = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True)
    root, inverse = gram / size, identity.expand_as(gram)
    for _ in range(steps):
        factor = (3 * identity - inverse @ root) / 2
        root, inverse = root @ factor, factor @ inverse
    return inverse @ symbol / size.sqrt()


def reflector(symbol: Tensor) -> Tensor:
    """I - 2 V (V*V)^-1 V* with V the first half of the columns."""
    half = symbol[..., : symbol.shape[-1] // 2]
    identity = torch.eye(symbol.shape[-1], dtype=symbol.dtype, device=symbol.device)
    return identity - 2 * half @ torch.linalg.solve(half.mH @ half, half.mH)


class AsPrinted(nn.Module):
    """A convolution in Fourier space with a published formula at each frequency, in complex64 and without a proof."""

    def __init__(self, channels: int, size: int, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.size, self.formula = size, formula
        start = torch.zeros(channels, channels, 3, 3)
        nn.init.orthogonal_(start[..., 1, 1])
        self.kernel = nn.Parameter(start)

    @property
    def symbol(self) -> Tensor:
        """One matrix for each frequency."""
        found = torch.fft.rfft2(self.kernel, s=(self.size, self.size)).conj()
        return self.formula(found.permute(2, 3, 0, 1))

    @property
    def weight(self) -> Tensor:
        """The kernel on the whole torus."""
        return torch.fft.irfft2(self.symbol.permute(2, 3, 0, 1).conj(), s=(self.size, self.size))

    def forward(self, x: Tensor) -> Tensor:
        image = torch.fft.rfft2(x).permute(2, 3, 1, 0)
        return torch.fft.irfft2((self.symbol @ image).permute(3, 2, 0, 1), s=x.shape[-2:])


@dataclass(frozen=True)
class Row:
    """The measurements of one layer."""

    family: str
    name: str
    seconds: float
    evaluation: float
    frozen: float | None
    # Largest, mean and smallest singular value.
    values: tuple[float, float, float]
    bytes: int

    def __str__(self) -> str:
        frozen = "-" if self.frozen is None else f"{self.frozen * 1e3:.2f}"
        top, mean, low = self.values
        return (
            f"{self.family:22} {self.name:34} {self.seconds * 1e3:9.2f} {self.evaluation * 1e3:9.2f} {frozen:>8} "
            f"{self.bytes / 2**20:9.2f} {top - 1:13.1e} {mean:8.4f} {low:8.4f}"
        )


def spread(layer: nn.Module) -> tuple[float, float, float]:
    """The largest, the mean and the smallest singular value of the weight as an operator.

    Kernels: of the symbol on a torus of 16 x 16 frequencies, of 4 x 4 beyond 256 channels, half of them by symmetry.
    """
    weight = layer.weight.detach().to(torch.float64)
    n = 16 if len(weight) <= 256 else 4
    if weight.ndim == 4 and weight.shape[-1] > 7:
        # A kernel as large as the image has a norm on that size only.
        n = weight.shape[-1]
    if weight.ndim == 4:
        # A torus that is smaller than the kernel would cut it.
        n = max(n, 2 * -(-weight.shape[-1] // 2))
        weight = torch.fft.rfft2(weight, s=(n, n)).permute(3, 2, 0, 1)
    # Through Gram matrices, many times faster than the decomposition, and accurate but for the last digits near 0.
    values = torch.linalg.eigvalsh(weight.mH @ weight).clamp(min=0).sqrt()
    # All frequencies of the second axis but the first and the last stand for two.
    mean = values.flatten(1).mean(1)[[*range(n // 2 + 1), *range(1, n // 2)]] if values.ndim > 1 else values
    return float(values.max()), float(mean.mean()), float(values.min())


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


def memory(layer: nn.Module, x: Tensor) -> int:
    """Bytes of a training step: the peak on a GPU; elsewhere what is kept for the backward pass beside parameters."""
    if x.is_cuda:
        layer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        step(layer, x)
        return torch.cuda.max_memory_allocated()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = layer(x)
    own = {t.untyped_storage().data_ptr() for t in (x, result, *layer.parameters())}
    return sum(size for place, size in kept.items() if place not in own)


def measured(family: str, name: str, layer: nn.Module, x: Tensor, most: float) -> Row | str:
    """One row, or why it was left out: a step longer than `most` seconds, or than the memory."""
    try:
        start = time.perf_counter()
        train(layer, x, steps=1)
        # Reading a number waits for the device.
        float(next(layer.parameters()).sum())
        seconds = time.perf_counter() - start
        if seconds > most:
            return f"left out: the first step takes {seconds:.1f} s"
        train(layer, x, steps=4)
        used = memory(layer, x)
        seconds, _ = best_of(lambda: step(layer, x), repeats=5)
        layer.eval()
        once, _ = best_of(lambda: evaluate(layer, x), repeats=5)
        held = None
        if "lipkit" in name:
            with lnn.frozen(layer):
                held, _ = best_of(lambda: evaluate(layer, x), repeats=5)
        return Row(family, name, seconds, once, held, spread(layer), used)
    except torch.OutOfMemoryError:
        return "left out: out of memory"


def awake() -> None:
    """Products, convolutions and Adam once: loading what is behind them (5 s) is not to count as a layer's step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for layer, x in ((nn.Linear(8, 8), torch.randn(8, 8)), (nn.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, 8, 8))):
        train(layer.to(device), x.to(device), steps=1)


def table(channels: int, size: int, batch: int, most: float, only: str, before: list[tuple[int, Row]]) -> list[Row]:
    """All rows for one number of channels, families together; `before` is what was measured with others, in order."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"\n{channels} channels, {size} x {size}, batch {batch}, float32")
    print(
        f"{'family':22} {'layer':34} {'step ms':>9} {'eval ms':>9} {'frozen':>8} {'MiB':>9} "
        f"{'sigma max - 1':>13} {'mean':>8} {'min':>8}"
    )
    rows: list[Row] = []
    for family, name, build in sorted([*ours(channels, size), *peers(channels, size)], key=lambda row: row[0]):
        if not family.startswith(only):
            continue
        torch.manual_seed(0)
        earlier = [(c, row) for c, row in before if (row.family, row.name) == (family, name)]
        found = f"left out: so was it with {before[-1][0]} channels" if before and not earlier else ""
        if earlier:
            c, last = earlier[-1]
            seconds, room = last.seconds * (channels / c) ** 3, last.bytes * (channels / c) ** 2
            # Runs below a tenth of a second are always made: predictions of such times would be noise.
            slow = seconds > most and last.seconds > 0.1
            if slow or (device == "cuda" and room > torch.cuda.mem_get_info()[1]):
                found = f"left out: {seconds:.1f} s and {room / 2**30:.1f} GiB by the cube and square of {c} channels"
        if not found:
            shape = (batch * 16, channels) if family.startswith("matrix") else (batch, channels, size, size)
            found = measured(family, name, build().to(device), torch.randn(shape, device=device), most)
        if isinstance(found, Row):
            rows.append(found)
            print(found, flush=True)
        else:
            print(f"{family:22} {name:34} {found}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--size", type=int, nargs="+", default=[32])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=float, default=20.0, help="leave out rows with longer steps, in seconds")
    parser.add_argument("--only", default="", help="families that start so: matrix, kernel, circle, or 'kernel, RKO'")
    parser.add_argument("--plot", help="draw tightness against time, of the last table, into this file")
    parser.add_argument("--peers")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.peers is not None:
        sys.path.insert(0, args.peers)
    torch.set_num_threads(args.threads)
    print(machine())
    awake()
    rows: list[Row] = []
    for size in args.size:
        before: list[tuple[int, Row]] = []
        for channels in args.channels:
            rows = table(channels, size, args.batch, args.most, args.only, before)
            before += [(channels, row) for row in rows]
    if args.plot:
        draw(rows, f"{args.channels[-1]} channels, batch {args.batch}, {machine()}", args.plot)


if __name__ == "__main__":
    main()
