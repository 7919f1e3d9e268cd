"""The stable rank of weights without negative entries at the start, beside published figures and limits for large n.

Prints, for n x n matrices, the mean and the spread of ||W||_F^2 / ||W||^2 over seeds, and the norm of the method's own
weights by SVD. With `--train` also the error of a convex network that learns a map between Gaussians from each start.

    python benchmarks/stable_rank.py [--size 512] [--seeds 4] [--train]
"""

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipkit import nn as lnn
from lipkit.nn import convex
from lipkit.nn.convex._signed import NonNegativeMethod

# The method, the figure printed for 512 (Béthune 2024, example 7.2), and the limit for large n.
STUDY: dict[str, tuple[NonNegativeMethod | None, float | None, Callable[[int], float] | None]] = {
    "uniform (Glorot), both signs": (None, 130.8, lambda n: n / 4),
    "NonNegative(SOFTPLUS)": (convex.NonNegative(convex.NonNegativeMap.SOFTPLUS), 1.0, lambda _: 1.0),
    "NonNegative(RELU)": (convex.NonNegative(convex.NonNegativeMap.RELU), 2.64, lambda _: 8 / 3),
    "NonNegative(ABSOLUTE)": (convex.NonNegative(convex.NonNegativeMap.ABSOLUTE), 1.33, lambda _: 4 / 3),
    "NonNegative(SQUARE)": (convex.NonNegative(convex.NonNegativeMap.SQUARE), None, lambda _: 9 / 5),
    "NonNegative(HUBER)": (convex.NonNegative(convex.NonNegativeMap.HUBER), 1.8, lambda _: 9 / 5),
    "Orthostochastic()": (convex.Orthostochastic(), 3.0, lambda _: 3.0),
    "Stochastic(None)": (convex.Stochastic(None), 36.8, lambda n: math.sqrt(3 * n) / math.tanh(math.sqrt(3 * n))),
    "Stochastic()": (convex.Stochastic(), 87.3, None),
}


def weight(method: NonNegativeMethod | None, size: int) -> Tensor:
    """The weight of a new layer."""
    if method is None:
        return torch.nn.init.xavier_uniform_(torch.empty(size, size))
    return lnn.Linear(size, size, method=method).weight.detach()


def error_after_training(method: NonNegativeMethod, steps: int = 300) -> float:
    """The mean squared error of the gradient of a convex network, relative to that of a constant map."""
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    # A monotone map that is not affine: the gradient of a sum of softplus of linear functions.
    directions = torch.randn(8, 4)
    target = torch.sigmoid(2 * x @ directions.mT) @ directions + x
    model = convex.ICNN(4, (64, 64, 64), method=method)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    error = torch.tensor(torch.nan)
    for _ in range(steps):
        error = (model.gradient(x) - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    return float(error.detach() / (target - target.mean(0)).square().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--train", action="store_true")
    chosen = parser.parse_args()
    tail = " error after training |" if chosen.train else ""
    print(f"| start, {chosen.size} x {chosen.size} | stable rank | printed | limit | share of rank | norm |{tail}")
    print("|---|---|---|---|---|---|" + "---|" * chosen.train)
    for name, (method, printed, limit) in STUDY.items():
        ranks, norms = [], []
        for seed in range(chosen.seeds):
            torch.manual_seed(seed)
            made = weight(method, chosen.size).double()
            ranks.append(float(convex.stable_rank(made)))
            norms.append(float(torch.linalg.matrix_norm(made, 2)))
        mean = sum(ranks) / len(ranks)
        cells = [
            f"{mean:.4g} ({min(ranks):.4g} to {max(ranks):.4g})",
            "" if printed is None else f"{printed:g}",
            "" if limit is None else f"{limit(chosen.size):.4g}",
            f"{mean / chosen.size:.2%}",
            "" if method is None else f"{max(norms):.6f}",
        ]
        if chosen.train:
            cells.append("" if method is None else f"{error_after_training(method):.3g}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
