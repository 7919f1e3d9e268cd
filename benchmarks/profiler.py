"""What a profiler costs: steps of training with and without it, and its noise terms against gradients of samples.

Claims: at `every=10` the profiler adds less than a tenth to a step of the ConvNet of Luo 2025, table 4.1, at batch 256;
and its kappa is that of `torch.func.vmap(grad)` to six digits in at most half the time.

    python benchmarks/profiler.py [--batch 256] [--steps 20] [--repeats 3] [--every 10]

Both sides run in one process and take turns, best of `repeats`. `noise terms` are one step with `every=1` less one
without a profiler, so they include all measurements; `vmap` is only the gradients of samples and their contractions.
"""

import argparse

import torch
from timing import best_of, machine
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lipkit import analysis


def network() -> nn.Sequential:
    """The ConvNet of table 4.1 without its options."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def profiled(x: Tensor, y: Tensor, steps: int, every: int, repeats: int) -> tuple[float, analysis.History]:
    """Seconds of `steps` steps inside of a profiler's block, and its history."""
    model = network().to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with analysis.Profiler(model, optimizer, x[:1], every=every) as profile:
        seconds, _ = best_of(lambda: train(model, optimizer, x, y, steps), repeats)
    return seconds, profile.history


def kappas(x: Tensor, y: Tensor, rate: float) -> list[float]:
    """kappa of every layer from stored gradients of samples."""
    model = network().to(x.device)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    stored = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    found: list[float] = []
    for name, weight in weights.items():
        if weight.ndim > 1:
            gradients = stored[name].flatten(2)
            hessian = analysis.singular_value_hessian(weight.flatten(1))
            value = hessian.triplet()[0]
            total = float(hessian.form(gradients - gradients.mean(0)).sum())
            found.append(rate * total / (2 * value * len(x) * (len(x) - 1)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=10)
    arguments = parser.parse_args()
    print(machine())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(arguments.batch, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (arguments.batch,), device=device)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    bare = watched = float("inf")
    for _ in range(arguments.repeats):
        bare = min(bare, best_of(lambda: train(model, optimizer, x, y, arguments.steps), 1)[0])
        watched = min(watched, profiled(x, y, arguments.steps, arguments.every, 1)[0])
    print(
        f"one step, batch {arguments.batch}: bare {bare / arguments.steps * 1e3:.1f} ms, profiled every "
        f"{arguments.every} {watched / arguments.steps * 1e3:.1f} ms, {100 * (watched / bare - 1):.1f} % more"
    )
    each, history = profiled(x, y, 1, 1, arguments.repeats)
    stored, theirs = best_of(lambda: kappas(x, y, 1e-3), arguments.repeats)
    ours = [float(layer.kappa[0]) for layer in history.layers if layer.kappa is not None]
    off = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    extra = each - bare / arguments.steps
    print(f"noise terms {extra * 1e3:.1f} ms, vmap {stored * 1e3:.1f} ms, {stored / extra:.1f}x; difference {off:.1e}")


if __name__ == "__main__":
    main()
