"""Second derivatives: of a singular value against autograd through a decomposition, of a loss against curvlinops.

Claims: by its operator, and by the matrix, D^2 sigma_1[X, X] at 2048 x 2048 takes a third of the time of double
backward through `svdvals` or less; by the operator less beyond. And products with the Hessian of a loss are at least as
many a second as those of curvlinops and hessian-eigenthings, where several are made at one point. For single ones all
three are alike.

    python benchmarks/analysis_curvature.py [--sizes 256 512 1024 2048 4096] [--repeats 3]

Both sides run in one process, best of `repeats`, in CPU time of all threads, so that other jobs count little; all rows
take turns. `matrix` is `singular_value_hessian(A)`, by the eigenvalues of the Gram matrix from 256 on and by a
decomposition below, and `operator` is `singular_value_hessian(Dense(A))`, by products with vectors alone; both with
all that comes before, and each with its ratio to double backward. `more` is one more direction at a matrix whose
Hessian is there already. Products are of a convolutional network with 64 images of 3 x 32 x 32: `apply` makes
everything anew for each vector, as curvlinops does, and `products` keeps the graph of the gradient, as the estimates
of lipkit do. The second part needs `pip install curvlinops-for-pytorch hessian-eigenthings --pre`, and is left out
without them.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import analysis
from lipkit.linops import Dense

T = TypeVar("T")


def by_autograd(matrix: Tensor, change: Tensor) -> float:
    x = torch.zeros((), dtype=matrix.dtype, device=matrix.device, requires_grad=True)
    value = torch.linalg.svdvals(matrix + x * change)[0]
    slope = torch.autograd.grad(value, x, create_graph=True)[0]
    return float(torch.autograd.grad(slope, x)[0])


def singular_values(sizes: list[int], repeats: int) -> None:
    print("D^2 sigma_1[X, X], float64: CPU seconds, and double backward over each; the difference is the larger one")
    print("   size  double backward    matrix    ratio  operator    ratio      more  difference")
    for n in sizes:
        matrix, change = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        hessian, op = analysis.singular_value_hessian(matrix), Dense(matrix)
        rows: list[Callable[[], float]] = [
            lambda a=matrix, b=change: by_autograd(a, b),
            lambda a=matrix, b=change: float(analysis.singular_value_hessian(a).form(b)),
            lambda a=op, b=change: float(analysis.singular_value_hessian(a).form(b)),
            lambda h=hessian, b=change: float(h.form(b)),
        ]
        (theirs, dense, free, more), found = by_turns(rows, repeats)
        off = max(abs(value / found[0] - 1) for value in found[1:])
        print(
            f"{n:7d} {theirs:16.3f} {dense:9.3f} {theirs / dense:7.1f}x {free:9.3f} {theirs / free:7.1f}x "
            f"{more:9.5f} {off:11.1e}",
            flush=True,
        )


def by_turns(rows: list[Callable[[], T]], rounds: int) -> tuple[list[float], list[T]]:
    """CPU seconds of the fastest run of each row, where all rows run once in a round, and the first results."""
    found = [run() for run in rows]
    times = [[timed(run) for run in rows] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)], found


def timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def network() -> nn.Module:
    """Four layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.AvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.GELU(), nn.Linear(64, 10)),
    )


def products(repeats: int) -> None:
    if any(find_spec(peer) is None for peer in ("curvlinops", "hessian_eigenthings")):
        print("\ncurvlinops or hessian-eigenthings is not installed, so products with Hessians are not compared.")
        return
    import curvlinops  # pyright: ignore[reportMissingImports]
    import hessian_eigenthings  # pyright: ignore[reportMissingImports]

    model, loss = network().eval(), nn.CrossEntropyLoss()
    x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    ours = analysis.Hessian(model, loss, (x, y))
    parameters = list(model.parameters())
    first = curvlinops.HessianLinearOperator(model, loss, parameters, [(x, y)], check_deterministic=False)
    second = hessian_eigenthings.HessianOperator(model, [(x, y)], lambda m, batch: loss(m(batch[0]), batch[1]))
    v = torch.randn(ours.in_size, generator=torch.Generator().manual_seed(1))
    kept = ours.products()
    named: list[tuple[str, Callable[[], Tensor]]] = [
        ("curvlinops", lambda: torch.as_tensor(first @ v)),
        ("hessian-eigenthings", lambda: second.matvec(v)),
        ("lipkit, apply", lambda: ours.apply(v)),
        ("lipkit, products", lambda: kept(v)),
    ]
    times, found = by_turns([run for _, run in named], 5 * repeats)
    print(f"\nproducts with the Hessian of {ours.in_size} parameters, float32")
    print("                     per CPU second  ratio   difference")
    for (name, _), seconds, one in zip(named, times, found, strict=True):
        off = float((one - found[0]).norm() / found[0].norm())
        print(f"{name:20s} {1 / seconds:10.1f} {times[0] / seconds:8.2f}x {off:12.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    singular_values(arguments.sizes, arguments.repeats)
    products(arguments.repeats)


if __name__ == "__main__":
    main()
