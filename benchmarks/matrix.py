"""A square constrained layer beside a plain one: a step of training, and an evaluation, as multiples of nn.Linear.

Claims: an evaluation without gradients costs at most 1.3 times that of nn.Linear, with nothing to remember; a step of
training takes as few steps of Björck's iteration as the free numbers need. The aim of 6 times nn.Linear is missed.

    python benchmarks/matrix.py [--width 1024] [--batch 256] [--threads 1] [--after 0 1 10 30] [--peers FOLDER]

Times are those of the processor, the least of several, so that other programs on the machine matter little; they are
the sum over threads. A step is forward and backward, with gradients for inputs and parameters. `--after` names numbers
of steps of Adam (learning rate 0.001, towards random targets) after which it is timed: free numbers drift away from
isometries. The last columns are the condition of the free matrix, and the largest and the smallest singular value of
the weight.
`--peers` is a folder with deel-torchlip 1.0.5 and einops, from
`pip install --no-deps --target FOLDER deel-torchlip==1.0.5 einops`.
"""

import argparse
import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import nn as lnn


def layers(width: int) -> Iterator[tuple[str, nn.Module]]:
    """The constrained layers, by name."""
    yield "lipkit Linear", lnn.Linear(width, width)
    with contextlib.suppress(ImportError):
        from deel import torchlip

        yield "torchlip SpectralLinear", torchlip.SpectralLinear(width, width)


def step(layer: nn.Module, x: Tensor, target: Tensor) -> None:
    layer.zero_grad()
    x.grad = None
    (layer(x) - target).square().mean().backward()


def least_of(run: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest of `repeats` runs, after one that does not count."""
    run()
    fastest = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        fastest = min(fastest, time.process_time() - start)
    return fastest


def seconds_of_step(layer: nn.Module, x: Tensor, target: Tensor, repeats: int = 6) -> float:
    layer.train()
    return least_of(lambda: step(layer, x, target), repeats)


def seconds_of_evaluation(layer: nn.Module, x: Tensor) -> float:
    layer.eval()
    with torch.no_grad():
        return least_of(lambda: layer(x), 50)


def condition(layer: nn.Module) -> float:
    """The condition of the free matrix; NaN for layers that have none by this name."""
    free = dict(layer.named_parameters()).get("parametrizations.weight.original")
    if free is None:
        return float("nan")
    values = torch.linalg.svdvals(free.detach().to(torch.float64))
    return float(values.max() / values.min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--after", type=int, nargs="+", default=[0, 1, 10, 30])
    parser.add_argument("--peers")
    args = parser.parse_args()
    if args.peers is not None:
        sys.path.append(args.peers)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    x, target = torch.randn(2, args.batch, args.width).unbind()
    x.requires_grad_()
    plain = nn.Linear(args.width, args.width)
    base, evaluation = seconds_of_step(plain, x, target, 50), seconds_of_evaluation(plain, x)
    print(f"{args.width} x {args.width}, batch {args.batch}, {machine()}")
    print(f"nn.Linear: step {base * 1e3:.1f} ms, evaluation {evaluation * 1e3:.2f} ms\n")
    print("layer                    Adam steps   step, ms   times    evaluation, ms   times   condition   values - 1")
    for name, layer in layers(args.width):
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        done = 0
        for after in sorted(args.after):
            for _ in range(after - done):
                layer.train()
                step(layer, x, target)
                optimizer.step()
            done = after
            seconds, alone = seconds_of_step(layer, x, target), seconds_of_evaluation(layer, x)
            with torch.no_grad():
                values = torch.linalg.svdvals(layer.weight.to(torch.float64)) - 1
            print(
                f"{name:24} {after:10} {seconds * 1e3:10.1f} {seconds / base:7.1f} {alone * 1e3:17.2f} "
                f"{alone / evaluation:7.2f} {condition(layer):11.3f}   {values.max():.1e}, {values.min():.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
