"""The derivative of the projection on orthogonal matrices: unrolled iterations against the closed form.

Claim: the closed form keeps no iterations in memory; its time against unrolled steps is printed, size by size.

    python benchmarks/stiefel_backward.py [--sizes 128 256 512 1024] [--steps 15] [--device cpu] [--dtype float32]

W = Q + 0.3 G / n^(1/2), Q orthogonal and G Gaussian, divided by its norm; all rows project the same matrix by Björck
steps (or, `lipkit.nn.Polar`, by a decomposition) and pull back the same random gradient:
- unrolled: autograd through every step;
- closed form: X of B X + X B = Q'G - G'Q by eigenvectors of B = sym(W'Q), the derivative is Q X;
- conjugate gradients: the same equation, to a relative residual of 1e-5;
- `lipkit.nn.Polar()` and `lipkit.nn.Bjorck()`: whole methods, with the step that proves the norm.
Times are of forward and backward together, processor time on a CPU, the least of three. MiB is what autograd keeps for
the backward pass. The error is relative to the closed form in float64.
"""

import argparse
import time
from collections.abc import Callable

import torch
from timing import machine
from torch import Tensor

from lipkit import nn as lnn


def start(n: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The matrix and the gradient."""
    torch.manual_seed(0)
    noise, gradient, orthogonal = torch.randn(3, n, n, dtype=torch.float64).unbind()
    orthogonal = torch.linalg.qr(orthogonal).Q
    weight = orthogonal + 0.3 * noise / n**0.5
    weight = weight / torch.linalg.matrix_norm(weight, 2)
    return weight.to(device, dtype), gradient.to(device, dtype)


def bjorck(weight: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        weight = 1.5 * weight - 0.5 * weight @ (weight.mT @ weight)
    return weight


def by_eigenvectors(stretch: Tensor, right: Tensor) -> Tensor:
    values, basis = torch.linalg.eigh(stretch)
    return basis @ ((basis.mT @ right @ basis) / (values[:, None] + values[None, :])) @ basis.mT


def by_conjugate_gradients(stretch: Tensor, right: Tensor) -> Tensor:
    solution, residual, direction = torch.zeros_like(right), right.clone(), right.clone()
    square, aim = residual.square().sum(), 1e-10 * right.square().sum()
    for _ in range(500):
        if not bool(square > aim):
            break
        image = stretch @ direction + direction @ stretch
        length = square / (direction * image).sum()
        solution, residual = solution + length * direction, residual - length * image
        square, before = residual.square().sum(), square
        direction = residual + square / before * direction
    return solution


Solver = Callable[[Tensor, Tensor], Tensor]


def closed_form(solver: Solver, steps: int) -> Callable[[Tensor], Tensor]:
    """The projection by Björck steps, with the derivative in closed form."""

    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, weight: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            found = bjorck(weight, steps)
            ctx.save_for_backward(weight, found)
            return found

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            weight, found = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
            stretch, inner = weight.mT @ found, found.mT @ gradient
            return found @ solver((stretch + stretch.mT) / 2, inner - inner.mT)

    return Project.apply  # pyright: ignore[reportReturnType]


def measure(project: Callable[[Tensor], Tensor], weight: Tensor, gradient: Tensor) -> tuple[float, float, Tensor]:
    """Seconds, MiB that autograd keeps, and the derivative."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    clock = time.perf_counter if weight.is_cuda else time.process_time
    fastest, found = float("inf"), torch.empty(0)
    for _ in range(3):
        free = weight.clone().requires_grad_()
        kept.clear()
        if weight.is_cuda:
            torch.cuda.synchronize()
        begin = clock()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = project(free)
        (found,) = torch.autograd.grad(result, free, gradient)
        if weight.is_cuda:
            torch.cuda.synchronize()
        fastest = min(fastest, clock() - begin)
    return fastest, sum(kept.values()) / 2**20, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    args = parser.parse_args()
    dtype = {"float32": torch.float32, "float64": torch.float64}[args.dtype]
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "unrolled": lambda w: bjorck(w, args.steps),
        "closed form": closed_form(by_eigenvectors, args.steps),
        "conjugate gradients": closed_form(by_conjugate_gradients, args.steps),
        "`nn.Polar()`": lambda w: lnn.Polar().matrix(w[None])[0],
        "`nn.Bjorck()`": lambda w: lnn.Bjorck().matrix(w[None])[0],
    }
    print(f"{args.steps} Björck steps, {args.dtype}, {machine()}\n")
    print("| n | " + " | ".join(f"{name}: ms, MiB, error" for name in ways) + " | unrolled / closed form |")
    print("|---:|" + "---:|" * (len(ways) + 1))
    for n in args.sizes:
        weight, gradient = start(n, args.device, dtype)
        exact = measure(closed_form(by_eigenvectors, 40), weight.double(), gradient.double())[2]
        cells, times = [], {}
        for name, project in ways.items():
            times[name], mib, found = measure(project, weight, gradient)
            error = float((found.double() - exact).norm() / exact.norm())
            cells.append(f"{times[name] * 1e3:.1f}, {mib:.1f}, {error:.0e}")
        print(f"| {n} | {' | '.join(cells)} | {times['unrolled'] / times['closed form']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
