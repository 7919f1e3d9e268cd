"""Norms of ResNet-18's twenty convolutions on 224 x 224 images: proven bounds beside what others offer.

Claims: (a) a deterministic upper bound within 0.5 % of the supremum of the symbol, (b) a randomised upper bound within
1 % of the true zero-padded norm, each with its time relative to 100 steps of convolutional power iteration, which
proves nothing, and to FFT + full SVD. All in one process; ratios printed. `--beside FILE` also times another
implementation: a Python file with compute_delattre2023(kernel, n, n_iter, return_time) and compute_delattre2024(kernel,
n_iter, return_time).

    python benchmarks/convolutions.py [--layers 20] [--steps 100] [--beside bounds.py]
"""

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import torch
from resnet18_layers import convolutions
from timing import best_of, machine
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Conv, symbol
from lipkit.norms import Cholesky, Circulant, Gram, Lanczos, SmallGrid

DETERMINISTIC = SmallGrid(rtol=2e-3, inner=Cholesky(rtol=2e-3, steps=40))
RANDOMISED = Lanczos(steps=200, rtol=1e-2)


def power_iteration(op: Conv, steps: int) -> Tensor:
    """The usual code: a float32 vector, conv and transposed conv, normalised; a lower bound."""
    x = torch.randn(1, *op.in_shape, device=op.device)
    stride, pad = op.stride, tuple(left for left, _ in op.padding)
    rest = tuple((n - k) % s for n, k, s in zip(op.padded, op.kernel, stride, strict=True))
    for _ in range(steps):
        y = functional.conv2d(x, op.weight, stride=stride, padding=pad)
        y = y / y.norm()
        x = functional.conv_transpose2d(y, op.weight, stride=stride, padding=pad, output_padding=rest)
        x = x / x.norm()
    return functional.conv2d(x, op.weight, stride=stride, padding=pad).norm()


def fft_svd(op: Conv) -> Tensor:
    """Sedghi et al.: all singular values at all frequencies of the input grid (of the stride-1 convolution)."""
    found = torch.fft.rfft2(op.weight, s=op.spatial).flatten(2).movedim(2, 0)
    return max(torch.linalg.svdvals(chunk).max() for chunk in found.split(512))


def supremum(op: Conv, points: int = 48, steps: int = 400) -> float:
    """The supremum of the symbol from below: power iteration on every frequency of a fine grid, in float64."""
    found = symbol(op.to(torch.float64))
    grid = tuple(points if taps > 1 else 1 for taps in found.taps)
    best = 0.0
    for chunk in found.frequencies(grid).split(512):
        blocks = found.at(chunk, grid).flatten(0, 1)
        blocks = blocks.mH @ blocks if blocks.shape[1] >= blocks.shape[2] else blocks @ blocks.mH
        v = torch.randn(len(blocks), blocks.shape[1], 1, dtype=blocks.dtype, device=blocks.device)
        for _ in range(steps):
            v = blocks @ v
            v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
        best = max(best, float((v.mH @ blocks @ v).real.max()))
    return math.sqrt(best)


def beside(module: ModuleType, ops: list[Conv], n_iter: int, toeplitz: bool, dtype: torch.dtype) -> list[Tensor]:
    """Another implementation's bounds on the same kernels."""
    kernels = [op.weight.to(dtype) for op in ops]
    if toeplitz:
        return [module.compute_delattre2024(kernel, n_iter=n_iter, return_time=False) for kernel in kernels]
    sizes = [op.spatial[0] for op in ops]
    found = zip(kernels, sizes, strict=True)
    return [module.compute_delattre2023(kernel, n=n, n_iter=n_iter, return_time=False) for kernel, n in found]


def loaded(path: Path) -> ModuleType:
    """A Python file as a module."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of power iteration")
    parser.add_argument("--svd", type=int, default=1, help="0 leaves out FFT + SVD, which takes minutes on a CPU")
    parser.add_argument("--beside", type=Path, default=None)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine())
    for trained_like in (False, True):
        ops = convolutions(trained_like, device)[: given.layers]
        print(f"\n{'trained-like' if trained_like else 'Gaussian'} weights, {len(ops)} layers")
        table(ops, given.steps, bool(given.svd), None if given.beside is None else loaded(given.beside))


def table(ops: list[Conv], steps: int, svd: bool, other: ModuleType | None) -> None:
    """Times every method on the same layers and prints the ratios."""
    sup = torch.tensor([supremum(op) for op in ops])
    low = torch.stack([b.lower.value for b in Lanczos(steps=400, rtol=1e-3).many(ops) if b.lower]).cpu()
    base, _ = best_of(lambda: [power_iteration(op, steps) for op in ops])
    print(f"{'method':82} {'ms':>8} {'x power':>8}  worst excess over sup / over a lower bound of the true norm")
    print(f"{f'power iteration, {steps} steps (proves nothing)':82} {base * 1e3:8.1f} {1.0:8.2f}")

    def row(name: str, seconds: float, found: list[Tensor]) -> None:
        values = torch.stack(found).cpu().double()
        over_sup, over_low = float((values / sup).max()) - 1, float((values / low).max()) - 1
        print(f"{name:82} {seconds * 1e3:8.1f} {base / seconds:8.2f}  {over_sup:+.3%} / {over_low:+.3%}")

    for method in (DETERMINISTIC, Circulant(Cholesky(rtol=2e-3, steps=40)), Circulant(Gram(6)), RANDOMISED):
        seconds, bounds = best_of(lambda method=method: method.many(ops))
        row(str(method), seconds, [bound.value for bound in bounds])
    if svd:
        row("FFT + full SVD, float32", *best_of(lambda: [fft_svd(op) for op in ops], repeats=1))
    if other is not None:
        for n_iter, toeplitz, dtype in ((6, False, torch.float32), (6, False, torch.float64), (4, True, torch.float32)):
            name = f"beside: {'filter Gram' if toeplitz else 'Gram on the input grid'}, {n_iter} steps, {dtype}"
            row(name, *best_of(lambda n=n_iter, t=toeplitz, d=dtype: beside(other, ops, n, t, d)))


if __name__ == "__main__":
    main()
