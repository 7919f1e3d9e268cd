"""Peak memory of differentiating the norm of a convolution: flat in the number of Gram steps.

Claim: the explicit gradient needs the same memory at every number of steps, plain automatic differentiation of the same
iteration grows with each. Measured on a GPU by the allocator, elsewhere by the size of what autograd saves. Writes a
plot.

    python benchmarks/memory.py [--out memory.png]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from lipkit.linops import Conv, symbol
from lipkit.norms import Circulant, Gram


def conv(device: str) -> Conv:
    """A 128-channel 3 x 3 convolution on 28 x 28, zero padding."""
    torch.manual_seed(0)
    weight = torch.randn(128, 128, 3, 3, dtype=torch.float64, device=device, requires_grad=True)
    return Conv(weight, (28, 28), (1, 1), ((1, 1), (1, 1)), (1, 1))


def explicit(op: Conv, steps: int) -> Tensor:
    """Ours."""
    return Circulant(Gram(steps))(op).value


def unrolled(op: Conv, steps: int) -> Tensor:
    """The same iteration, differentiated by autograd through every step and frequency."""
    found = symbol(op)
    x = found.at(found.frequencies(found.torus), found.torus).flatten(0, 1)
    log_scale = x.new_zeros(len(x), dtype=torch.float64)
    for _ in range(steps):
        size = torch.linalg.vector_norm(x, dim=(1, 2))
        log_scale = 2 * (log_scale + size.log())
        x = x / size[:, None, None]
        x = x.mH @ x
    return ((torch.linalg.vector_norm(x, dim=(1, 2)).log() + log_scale) / 2**steps).max().exp()


def peak_mib(value: Tensor, device: str) -> float:
    """MiB: the allocator's peak during backward on a GPU (measured by the caller), else what autograd keeps."""
    if device == "cuda":
        value.backward()
        return torch.cuda.max_memory_allocated() / 2**20
    return 0.0


def measure(run: object, op: Conv, steps: int, device: str) -> float:
    """Peak memory of value and gradient."""
    saved = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal saved
        saved += t.numel() * t.element_size()
        return t

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        value = run(op, steps)  # pyright: ignore[reportCallIssue]
    return peak_mib(value, device) if device == "cuda" else saved / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("memory.png"))
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    op = conv(device)
    steps = list(range(1, 11))
    rows = {
        "explicit gradient": [measure(explicit, op, n, device) for n in steps],
        "unrolled autograd": [measure(unrolled, op, n, device) for n in steps],
    }
    print(f"{'steps':>24} " + " ".join(f"{n:7d}" for n in steps))
    for name, values in rows.items():
        print(f"{name + ', MiB':>24} " + " ".join(f"{v:7.0f}" for v in values))

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, values), style in zip(rows.items(), ("o-", "s--"), strict=True):
        axes.plot(steps, values, style, color="black" if style == "o-" else "0.55", label=name)
    what = "peak memory" if device == "cuda" else "memory kept for the backward pass"
    axes.set(
        xlabel="Gram steps",
        ylabel=f"{what}, MiB",
        ylim=(0, None),
        title="Gradient of the norm of a 128-channel convolution on 28 x 28",
    )
    axes.legend(frameon=False)
    figure.savefig(given.out, dpi=150)
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
