"""What a constrained convolution costs in training beside torch's own, where starting operations takes longest.

Claim: 3 x 3 convolutions by the default take at most 1.1 times a step of nn.Conv2d with the same channels, compiled.
Forward and backward of one layer under bfloat16 autocast, run in four ways: by Python, compiled, compiled with
recorded launches (mode="reduce-overhead"), and by Python as one recorded CUDA graph. Printed for each: milliseconds of
a step, its ratio to nn.Conv2d in the same way, and on a GPU the time and number of its kernels with the longest of
them; what is missing to the time of a step is the host's.

    python benchmarks/overhead.py [--channels 256] [--size 32] [--batch 256]             # on a GPU
    python benchmarks/overhead.py --channels 8 --size 8 --batch 2                        # on a CPU, to see that it runs
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import nn as lnn

STEPS = 20
Step = Callable[[], object]


def layers(channels: int) -> dict[str, Callable[[], nn.Module]]:
    """Convolutions that keep the size, by name; the first is what the others are compared with."""
    return {
        "torch.nn.Conv2d": lambda: nn.Conv2d(channels, channels, 3, padding=1),
        "lipkit default": lambda: lnn.Conv2d(channels, channels, 3, padding=1),
        "lipkit AOL": lambda: lnn.Conv2d(channels, channels, 3, padding=1, method=lnn.AOL()),
        "lipkit RKO": lambda: lnn.Conv2d(channels, channels, 3, padding=1, method=lnn.RKO()),
    }


def plain(layer: nn.Module, x: Tensor, program: Callable[[Tensor], Tensor] | None = None) -> Step:
    """Forward and backward, with gradients anew each time: in a recorded step they have one place."""
    run = layer if program is None else program

    def once() -> None:
        layer.zero_grad()
        x.grad = None
        with torch.autocast(x.device.type, torch.bfloat16):
            y = run(x)
        y.backward(torch.ones_like(y))

    return once


def compiled(layer: nn.Module, x: Tensor) -> Step:
    """The layer as one compiled program."""
    return plain(layer, x, torch.compile(layer, fullgraph=True))


def replayed(layer: nn.Module, x: Tensor) -> Step:
    """The compiled program, its launches recorded by torch."""
    once = plain(layer, x, torch.compile(layer, fullgraph=True, mode="reduce-overhead"))

    def begin() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        once()

    return begin


def recorded(layer: nn.Module, x: Tensor) -> Step:
    """The step of Python, recorded once as a CUDA graph.

    The gradient of an input is added up on the stream that first used it, which for `x` is not the one that is
    recorded; so the step has an input of its own.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        once = plain(layer, x.detach().clone(memory_format=torch.preserve_format).requires_grad_())
        for _ in range(3):
            once()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        once()
    return graph.replay


WAYS = {"eager": plain, "compiled": compiled, "reduce-overhead": replayed, "CUDA graph": recorded}


def kernels(once: Step, calls: int = 10, shown: int = 5) -> str:
    """Milliseconds and number of the kernels in a step, and the longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            once()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    times = [(event.self_device_time_total / calls / 1e3, event.key[:40]) for event in events]
    count = sum(event.count for event in events if event.self_device_time_total) / calls
    longest = ", ".join(f"{ms:.3f} {name}" for ms, name in times[:shown])
    return f"kernels {sum(ms for ms, _ in times):.3f} ms in {count:.0f} ({longest})"


def main() -> None:
    """Print a line for each way and layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{machine()}; bfloat16 autocast, {args.channels} channels, {args.size} x {args.size}, batch {args.batch}")
    shape = (args.batch, args.channels, args.size, args.size)
    x = torch.randn(shape, device=device).to(memory_format=torch.channels_last).requires_grad_()
    for how, prepare in WAYS.items():
        if how == "CUDA graph" and device == "cpu":
            continue
        base = None
        for name, build in layers(args.channels).items():
            torch.manual_seed(0)
            layer: Any = build()
            once = prepare(layer.to(device, memory_format=torch.channels_last), x)
            for _ in range(5):
                once()
            seconds, _ = best_of(lambda once=once: [once() for _ in range(STEPS)])
            base = seconds if base is None else base
            seen = kernels(once) if device == "cuda" else ""
            print(f"{how:15} {name:16} {seconds / STEPS * 1e3:8.3f} ms  {seconds / base:5.2f}x  {seen}", flush=True)


if __name__ == "__main__":
    main()
