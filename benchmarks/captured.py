"""Reading a network of constrained layers with and without gradients.

Claim: under `torch.no_grad()`, where computed weights are held, what computes them is not traced; for networks of many
constrained layers that is nearly all there is to trace.

    python benchmarks/captured.py [--convolutions 20] [--dense 7] [--width 2048] [--threads 1]

One process, one capture each after a small one that loads torch's tracer; processor seconds. The network is that of
recipes/cifar10_sll.py with two steps, and one of as many orthogonal layers.
"""

import argparse
import time
from collections.abc import Callable

import torch
from timing import machine
from torch import nn

from lipkit import nn as lnn
from lipkit.bounds.lipschitz import network_of


def sll(convolutions: int, dense: int, width: int) -> nn.Module:
    """Residual layers with step sizes from Gram products."""
    return nn.Sequential(
        nn.ZeroPad3d((0, 0, 0, 0, 0, 42)),
        *(lnn.SLLConv(45, 3, 5, steps=2) for _ in range(convolutions)),
        *(lnn.ScaledAvgPool2d(4), nn.Flatten()),
        *(lnn.SLL(45 * 64, width, steps=2) for _ in range(dense)),
        lnn.Linear(45 * 64, 10, method=lnn.UnitRows()),
    )


def orthogonal(convolutions: int, dense: int, width: int) -> nn.Module:
    """Convolutions by AOL, then Björck's matrices."""
    parts: list[nn.Module] = [lnn.Conv2d(3, 16, 3, padding=1)]
    parts += [part for _ in range(convolutions) for part in (lnn.Conv2d(16, 16, 3, padding=1), lnn.MaxMin())]
    parts += [nn.Flatten(), lnn.Linear(16 * 1024, width // 4, method=lnn.Bjorck())]
    parts += [part for _ in range(dense) for part in (lnn.MaxMin(), lnn.Linear(width // 4, width // 4))]
    return nn.Sequential(*parts)


def spent(fn: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    fn()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convolutions", type=int, default=20)
    parser.add_argument("--dense", type=int, default=7)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(machine())
    network_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2))
    x = torch.rand(1, 3, 32, 32)
    for build in (sll, orthogonal):
        torch.manual_seed(0)
        model = build(args.convolutions, args.dense, args.width).eval()
        with torch.no_grad():
            held = spent(lambda model=model: network_of(model, x))
        traced = spent(lambda model=model: network_of(model, x))
        print(f"{build.__name__:12} with gradients {traced:8.2f} s, without {held:8.2f} s, {traced / held:.1f} times")


if __name__ == "__main__":
    main()
