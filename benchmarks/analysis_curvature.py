"""Second derivatives: of a singular value against autograd through a decomposition, of a loss against curvlinops.

Claims: D^2 sigma_1[X, X] at 2048 x 2048 takes a third of the time of double backward through `svdvals`, or less; and
products with the Hessian of a loss are at least as many a second as those of curvlinops and hessian-eigenthings, where
several are made at one point. For single ones all three are alike.

    python benchmarks/analysis_curvature.py [--sizes 256 512 1024 2048] [--repeats 3]

Both sides run in one process, best of `repeats`. `matrix` is `singular_value_hessian(A)`, by a decomposition, and
`operator` is `singular_value_hessian(Dense(A))`, by products with vectors alone; both with all that comes before.
`more` is one more direction at a matrix that is decomposed already. Products are of a convolutional network with 64
images of 3 x 32 x 32: `apply` makes everything anew for each vector, as curvlinops does, and `products` keeps the graph
of the gradient, as the estimates of lipkit do. The rows take turns, so that a busy machine is fair. The second
part needs `pip install curvlinops-for-pytorch hessian-eigenthings --pre`, and is left out without them.
"""

import argparse
from collections.abc import Callable
from importlib.util import find_spec

import torch
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import analysis
from lipkit.linops import Dense


def by_autograd(matrix: Tensor, change: Tensor) -> float:
    x = torch.zeros((), dtype=matrix.dtype, device=matrix.device, requires_grad=True)
    value = torch.linalg.svdvals(matrix + x * change)[0]
    slope = torch.autograd.grad(value, x, create_graph=True)[0]
    return float(torch.autograd.grad(slope, x)[0])


def singular_values(sizes: list[int], repeats: int) -> None:
    print("D^2 sigma_1[X, X], float64: seconds, and double backward over `operator`")
    print("   size  double backward    matrix  operator      more    ratio  difference")
    for n in sizes:
        matrix, change = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        theirs, expected = best_of(lambda a=matrix, b=change: by_autograd(a, b), repeats)
        dense, _ = best_of(lambda a=matrix, b=change: analysis.singular_value_hessian(a).form(b), repeats)
        hessian = analysis.singular_value_hessian(matrix)
        more, _ = best_of(lambda h=hessian, b=change: h.form(b), repeats)
        op = Dense(matrix)
        free, found = best_of(lambda a=op, b=change: analysis.singular_value_hessian(a).form(b), repeats)
        off = abs(float(found) / expected - 1)
        print(f"{n:7d} {theirs:16.3f} {dense:9.3f} {free:9.3f} {more:9.5f} {theirs / free:7.1f}x {off:11.1e}")


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
    rows: list[tuple[str, Callable[[], Tensor]]] = [
        ("curvlinops", lambda: first @ v),
        ("hessian-eigenthings", lambda: second.matvec(v)),
        ("lipkit, apply", lambda: ours.apply(v)),
        ("lipkit, products", lambda: kept(v)),
    ]
    rounds = [[best_of(run, 1) for _, run in rows] for _ in range(5 * repeats)]
    times = [min(seconds for seconds, _ in column) for column in zip(*rounds, strict=True)]
    print(f"\nproducts with the Hessian of {ours.in_size} parameters, float32")
    print("                     per second     ratio   difference")
    reference = rounds[0][0][1]
    for (name, _), seconds, (_, found) in zip(rows, times, rounds[0], strict=True):
        off = float((found - reference).norm() / reference.norm())
        print(f"{name:20s} {1 / seconds:10.1f} {times[0] / seconds:8.2f}x {off:12.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    singular_values(arguments.sizes, arguments.repeats)
    products(arguments.repeats)


if __name__ == "__main__":
    main()
