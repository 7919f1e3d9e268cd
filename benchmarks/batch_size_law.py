"""How the scatter of K over orders of the samples falls with the batch size: the slope of log Var[K] in log M.

Claim: the slope is -1 within 0.15 (Luo 2025, proposition 4.8.2 and figure 4.5, there for a ConvNet and 39,000 steps).

    python benchmarks/batch_size_law.py [--seeds 128] [--steps 300] [--rate 0.05] [--plot FILE]

One initialisation of the perceptron 20-30-30-5 is trained by plain SGD on 2,000 points in five clusters, once for each
seed and batch size, 32 to 384 as in the figure; a seed decides which points a batch draws, with replacement. All seeds
of one size are one batched computation in float64. `predicted` is the variance that the model forecasts from one run
under the profiler, the first seed; `scatter / predicted` would be 1 if the model were exact.
"""

import argparse
import math
from itertools import pairwise
from pathlib import Path

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import analysis

SIZES = range(32, 385, 32)
WIDTHS = (20, 30, 30, 5)
AIM = 0.15


def clusters(count: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    centres = 1.5 * torch.randn(5, WIDTHS[0], generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 5, (count,), generator=draws)
    return centres[labels] + torch.randn(count, WIDTHS[0], generator=draws, dtype=torch.float64), labels


def initial() -> list[Tensor]:
    """Kaiming's initialisation, without biases."""
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(m, n, generator=draws, dtype=torch.float64) * (2 / n) ** 0.5 for n, m in pairwise(WIDTHS)]


def orders(size: int, seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * size + seed) for seed in range(seeds)]


def scatter(size: int, seeds: int, steps: int, rate: float) -> Tensor:
    """K after training, for every seed: gradients of a sum over seeds are those of each seed alone."""
    x, y = clusters(2000)
    weights = [weight.expand(seeds, *weight.shape).clone().requires_grad_() for weight in initial()]
    draws = orders(size, seeds)
    for _ in range(steps):
        chosen = torch.stack([torch.randint(0, len(x), (size,), generator=one) for one in draws])
        hidden = x[chosen]
        for i, weight in enumerate(weights):
            hidden = hidden @ weight.mT
            hidden = hidden.relu() if i + 1 < len(weights) else hidden
        loss = nn.functional.cross_entropy(hidden.flatten(0, 1), y[chosen].flatten(), reduction="sum") / size
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
    norms = [torch.linalg.matrix_norm(weight.detach(), 2) for weight in weights]
    return torch.stack(norms).prod(0)


def predicted(size: int, steps: int, rate: float) -> tuple[float, analysis.Forecast]:
    """K of the first seed, trained again under the profiler, and the forecast."""
    x, y = clusters(2000)
    layers = [nn.Linear(n, m, bias=False, dtype=torch.float64) for n, m in pairwise(WIDTHS)]
    for layer, weight in zip(layers, initial(), strict=True):
        layer.weight.data.copy_(weight)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    (draws,) = orders(size, 1)
    with analysis.Profiler(model, optimizer, x[:1], every=1) as profile:
        for _ in range(steps):
            chosen = torch.randint(0, len(x), (size,), generator=draws)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return math.exp(float(profile.history.log_constant[-1])), analysis.forecast(profile.history)


def slope(sizes: list[int], variances: list[float]) -> float:
    """The least-squares slope of log variance in log size."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(variances).double().log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    print(machine())
    print(
        "| M | mean K | Var[K] | Var[K] / mean^2 | predicted Var[K] | scatter / predicted |\n|---|---|---|---|---|---|"
    )
    sizes, variances, models = [], [], []
    for size in SIZES:
        constants = scatter(size, arguments.seeds, arguments.steps, arguments.rate)
        again, law = predicted(size, arguments.steps, arguments.rate)
        # Both ways to train are one training; sums in another order differ in the last digits.
        assert math.isclose(again, float(constants[0]), rel_tol=1e-6), (again, float(constants[0]))
        mean, variance, model = float(constants.mean()), float(constants.var()), math.exp(law.log_variance)
        print(
            f"| {size} | {mean:.4f} | {variance:.3e} | {variance / mean**2:.2e} | "
            f"{model:.3e} | {variance / model:.2f} |",
            flush=True,
        )
        sizes.append(size)
        variances.append(variance)
        models.append(model)
    found, of_model = slope(sizes, variances), slope(sizes, models)
    x = torch.tensor(sizes).double().log()
    error = math.sqrt(2 / (arguments.seeds - 1) / float((x - x.mean()).square().sum()))
    verdict = "met" if abs(found + 1) <= AIM else "MISSED"
    print(
        f"slope {found:.3f} +- {error:.3f} (one standard error), aim -1 +- {AIM}: {verdict}; "
        f"of the model {of_model:.3f}"
    )
    if arguments.plot is not None:
        from lipkit.report.dynamics_figures import draw_batch_sizes

        draw_batch_sizes(sizes, variances, models, found, arguments.seeds, arguments.plot)


if __name__ == "__main__":
    main()
