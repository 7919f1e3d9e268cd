"""How much more of an ordinary network is certified near each sample than by its constant, and what a sample costs.

    python benchmarks/local_radii.py PATH/TO/mnist

Trains a small CNN without constraints for two minutes at most, and certifies the first test images three ways in one
process: by the global constant of the pairs, by that and what holds near each image, and against the worst of several
attacks, which no certificate can exceed.
"""

import sys
import time
from collections import Counter

import torch
from torch import nn

from lipkit.certify import LocalRadii, accuracy, head_pairwise
from lipkit.certify.attacks import WorstOf
from lipkit.data import Examples, digits, mnist

EPS = (0.05, 0.1, 0.2, 0.3, 0.5)


def cnn(width: int) -> nn.Module:
    """Two convolutions with strides and two dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * (width // 4) ** 2, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def train(train_set: Examples, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = cnn(train_set.inputs.shape[-1])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for rows in (rows for _ in range(epochs) for rows in torch.randperm(len(train_set)).split(100)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train_set.inputs[rows]), train_set.labels[rows]).backward()
        optimizer.step()
    return model.eval()


def report(name: str, model: nn.Module, test: Examples, samples: int, allowed: float) -> None:
    some = test.at(range(samples))
    with torch.no_grad():
        bound = head_pairwise(model, some.inputs[:1])
    started = time.perf_counter()
    plain = accuracy(model, some, bound, EPS)
    between = time.perf_counter()
    local = accuracy(model, some, bound, EPS, local=LocalRadii(seconds=allowed))
    after = time.perf_counter()
    attacked = accuracy(model, some, bound, EPS, attack=WorstOf(max(EPS), low=0.0, high=1.0)).overall.attacked
    end = time.perf_counter()
    assert attacked is not None
    top = float(bound.value.max())
    print(f"{name}: {plain.overall.clean.count} of {samples} right; constants of pairs up to {top:.3g}")
    print("| l2 radius | certified by the constant | and near each sample | left by the worst of 5 attacks |")
    for i, eps in enumerate(EPS):
        counts = (plain.overall.certified[i].count, local.overall.certified[i].count, attacked[i].count)
        print(f"| {eps} | " + " | ".join(map(str, counts)) + " |")
    seconds = [(b - a) / samples for a, b in ((started, between), (between, after), (after, end))]
    print("seconds a sample: " + ", ".join(f"{one:.3g}" for one in seconds))
    print("proofs: " + ", ".join(f"{count} by {proof or 'the constant'}" for proof, count in
                                 Counter(sample.proof for sample in local.samples).most_common()))  # fmt: skip


def main() -> None:
    train_set, test = digits().split(397, seed=0)
    report("digits", train(train_set, 30), test, 40, 10.0)
    if len(sys.argv) > 1:
        some = mnist(sys.argv[1], train=True).at(range(10_000))
        report("MNIST", train(some, 2), mnist(sys.argv[1], train=False), 8, 2.0)


if __name__ == "__main__":
    main()
