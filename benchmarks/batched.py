"""`lnn.batched` against the same network without: many equal layers, a training step of each, in one process.

Claim: where layers are narrow and many, computing their weights together is faster, and the weights are the same.

    python benchmarks/batched.py [--layers 32] [--width 16 32 64 128] [--threads 1]

The step is a forward and a backward pass over a batch of 8; the largest difference of gradients stands beside it, as a
part of the largest gradient. On a GPU, where launches dominate, products of 32 layers become one.
"""

import argparse

import torch
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import nn as lnn

METHODS = (lnn.Bjorck(), lnn.Cayley(), lnn.Exponential(), lnn.Householder(), lnn.AOL())


def step(model: nn.Module, x: Tensor, together: bool) -> None:
    model.zero_grad()
    if together:
        with lnn.batched(model):
            model(x).square().sum().backward()
    else:
        model(x).square().sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{machine()}, {args.layers} layers")
    print(f"{'method':28} {'width':>5} {'one by one, ms':>15} {'batched, ms':>12} {'ratio':>6} {'gradients':>10}")
    for method in METHODS:
        for width in args.width:
            torch.manual_seed(0)
            model = nn.Sequential(*(lnn.Linear(width, width, method=method) for _ in range(args.layers))).to(device)
            x = torch.randn(8, width, device=device)
            found: list[tuple[float, Tensor]] = []
            for together in (False, True):
                seconds, _ = best_of(lambda together=together, model=model, x=x: step(model, x, together), repeats=5)
                found.append((seconds, gradients(model)))
            (alone, first), (batch, second) = found
            apart = float((first - second).abs().max() / first.abs().max())
            print(
                f"{method!s:28} {width:5} {alone * 1e3:15.2f} {batch * 1e3:12.2f} {alone / batch:6.2f} {apart:10.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
