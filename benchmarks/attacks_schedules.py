"""Constant against halving steps in PGD, at equal numbers of gradients, where the exact distances are known.

Claim: with the same budget, `Halving` finds inputs of another class nearer to the boundary than `Constant` steps do.

A classifier with one hidden layer of eight ReLUs is trained on Gaussian blobs. Its exact distance to another class is
the least of 2^8 quadratic programs a class, one for each pattern of active units. Every attack then gets each sample's
exact distance times 1.01, 1.05 and 1.2 as its radius, and the share it breaks is printed: 100 % is what a perfect
attack reaches. Last line: at 1 - 1e-6 times the distance nothing may break.

Run: python benchmarks/attacks_schedules.py
"""

import itertools
import math
import time

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from lipkit.certify.attacks import PGD, Constant, CrossEntropy, EveryClass, Halving, Margin, margins


def trained(
    size: int, hidden: list[int], classes: int, spread: float, seed: int
) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A ReLU net on Gaussian blobs, with fresh samples that it classifies correctly."""
    torch.manual_seed(seed)
    centers = torch.randn(classes, size)
    widths = [size, *hidden]
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths):
        layers += [nn.Linear(i, o), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], classes)).double()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(400):
        labels = torch.randint(classes, (256,))
        x = (centers[labels] + spread * torch.randn(256, size)).double()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    labels = torch.randint(classes, (400,))
    x = (centers[labels] + spread * torch.randn(400, size)).double()
    right = model(x).argmax(1) == labels
    return model, x[right], labels[right]


def nearest_in_polytope(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """min ||z - x|| over a z <= b, by its dual, a nonnegative least squares problem; inf where there is no z.

    The least distance problem min ||u||, G u >= h, is solved by the residual of nnls([G^T; h^T], e_last)
    (Lawson, Hanson 1974, chapter 23).
    """
    g, h = -a, -(b - a @ x)
    system = np.vstack([g.T, h[None]])
    target = np.zeros(len(system))
    target[-1] = 1.0
    solution, residual = nnls(system, target)
    if residual < 1e-10:
        return math.inf
    r = system @ solution - target
    return float(np.linalg.norm(-r[:-1] / r[-1]))


def exact_distance(model: nn.Sequential, x: Tensor, label: int) -> float:
    """The distance to a tie with another class, over all patterns of the one hidden layer."""
    first, last = model[0], model[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    w, b = first.weight.detach().numpy(), first.bias.detach().numpy()
    v, c = last.weight.detach().numpy(), last.bias.detach().numpy()
    best, point = math.inf, x.numpy()
    for pattern in itertools.product((0.0, 1.0), repeat=len(b)):
        on = np.array(pattern)
        sign = (1 - 2 * on)[:, None]
        for j in range(len(c)):
            if j == label:
                continue
            # (v_y - v_j) on (w z + b) + c_y - c_j <= 0, inside the pattern's polytope.
            row = (v[label] - v[j]) * on
            a = np.vstack([sign * w, (row @ w)[None]])
            rhs = np.concatenate([-sign[:, 0] * b, [-(row @ b + c[label] - c[j])]])
            best = min(best, nearest_in_polytope(point, a, rhs))
    return best


def broken(attack: PGD, model: nn.Module, x: Tensor, labels: Tensor, radii: Tensor) -> float:
    """The percentage of samples that an attack breaks within their radii."""
    found = attack.within(model, x, labels, radii, generator=torch.Generator().manual_seed(0))
    return 100 * float((margins(model(found), labels) < 0).double().mean())


def main() -> None:
    factors = (1.01, 1.05, 1.2)
    print(f"{'attack':<56}" + "".join(f"{f'x {f:g}':>9}" for f in factors) + f"{'seconds':>10}")
    tasks = [trained(10, [8], 4, 0.9, seed) for seed in range(4)]
    tasks = [(model, x[:60], labels[:60]) for model, x, labels in tasks]
    truth = [
        torch.tensor([exact_distance(model, p, int(y)) for p, y in zip(x, labels, strict=True)], dtype=torch.float64)
        for model, x, labels in tasks
    ]
    most = 0.0
    objectives = (CrossEntropy(), Margin(), EveryClass())
    for objective, steps, restarts in itertools.product(objectives, (10, 40), (1, 5)):
        for schedule in (Constant(), Halving()):
            attack = PGD(1.0, steps=steps, restarts=restarts, objective=objective, schedule=schedule)
            start = time.perf_counter()
            shares = [
                np.mean([broken(attack, *task, d * f) for task, d in zip(tasks, truth, strict=True)]) for f in factors
            ]
            seconds = time.perf_counter() - start
            most = max(most, *(broken(attack, *t, d * (1 - 1e-6)) for t, d in zip(tasks, truth, strict=True)))
            name = f"{steps} {schedule}, {restarts} restart(s), {objective}"
            print(f"{name:<56}" + "".join(f"{s:>8.1f}%" for s in shares) + f"{seconds:>10.2f}")
    print(f"{sum(map(len, truth))} samples; broken inside of the exact distance: {most:g} %")


if __name__ == "__main__":
    main()
