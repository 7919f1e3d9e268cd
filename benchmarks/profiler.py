"""What a profiler costs: steps of training with and without it, and its noise terms against gradients of samples.

Claims: at `every=10` the profiler adds less than a tenth to a step of the ConvNet of Luo 2025, table 4.1, at batch 256;
and its kappa is that of `torch.func.vmap(grad)` to six digits in at most half the time.

    python benchmarks/profiler.py [--batch 256] [--steps 20] [--repeats 3] [--every 10] [--device cpu]
    python benchmarks/profiler.py --model resnet18 --batch 512 --device cuda [--size 32] [--parts]
    python benchmarks/profiler.py --memory [--batch 128]

Both sides run in one process and take turns, best of `repeats`. On a CPU it is the time of all threads of the process,
so that others on the machine do not count; on a GPU it is wall time. `noise terms` are one step with `every=1` less one
without a profiler, so they include all measurements; `vmap` is only the gradients of samples and their contractions.
`--parts` prints instead what a step and each part of the profiler take by the clock, waiting for the device around each
of them, and how many kernels and readings of single numbers by the host it asks for.
`--memory` prints instead the peak of memory of a bare step, of one inside of a profiler that measures noise terms, and
of one with stored gradients of samples, each in a fresh process on a CPU, because a process never gives its peak back.
ResNet-18 has batch normalisation in training, so its profiler has no noise terms, and `vmap` is left out.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from timing import machine
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

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


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.second, self.last = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        shorter = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Identity() if channels == out else shorter

    def forward(self, x: Tensor) -> Tensor:
        return (self.last(self.second(self.norm(self.first(x)).relu())) + self.skip(x)).relu()


def resnet18() -> nn.Sequential:
    """ResNet-18 for small images: a first convolution of 3 x 3, and no pooling before the blocks."""
    torch.manual_seed(0)
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(Block(*width) for width in widths),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Seconds of one run: of all threads of this process on a CPU, by the clock on a GPU."""
    if device == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


# Operators that compute nothing, beside the views.
FREE = (torch.ops.aten._unsafe_view, torch.ops.aten.promote_types, torch.ops.aten.squeeze_)


class Launches(TorchDispatchMode):
    """Counts operators that compute: kernels on a GPU, or more where an operator has several."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.waits += func._overloadpacket is torch.ops.aten._local_scalar_dense
        self.count += not (func.is_view or func._overloadpacket in FREE)
        return func(*args, **(kwargs or {}))


@dataclass
class Part:
    """What the calls of one part took."""

    seconds: list[float] = field(default_factory=list[float])
    launches: int = 0
    waits: int = 0

    def line(self) -> str:
        mean = sum(self.seconds) / len(self.seconds)
        return (
            f"{mean * 1e3:9.3f} ms, best {min(self.seconds) * 1e3:9.3f} ms, {self.launches:6d} launches, "
            f"{self.waits:4d} numbers read, {len(self.seconds):3d} calls"
        )


@dataclass(frozen=True)
class Setting:
    """A network, its batch and its device."""

    make: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    device: str

    def bare(self, steps: int) -> float:
        """Seconds of `steps` steps, after one that does not count."""
        model = self.make().to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(model, optimizer, self.x, self.y, 1)
        return seconds_of(lambda: train(model, optimizer, self.x, self.y, steps), self.device)

    def profiled(self, steps: int, every: int, before: int) -> tuple[float, analysis.Profiler]:
        """Seconds of `steps` steps inside of a profiler's block, after `before` others, and the profiler."""
        model = self.make().to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with analysis.Profiler(model, optimizer, self.x[:1], every=every) as profile:
            train(model, optimizer, self.x, self.y, before)
            seconds = seconds_of(lambda: train(model, optimizer, self.x, self.y, steps), self.device)
        return seconds, profile


def print_parts(setting: Setting, steps: int, every: int) -> None:
    """The parts of a profiler, by the clock; the numbers of launches and readings are those of the last call."""
    parts: dict[str, Part] = defaultdict(Part)

    def measure(name: Callable[[], str], run: Callable[..., Any], counted: bool) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            part = parts[name()]
            if counted:
                with Launches() as launches:
                    found = run(*args)
                part.launches, part.waits = launches.count, launches.waits
                return found
            wait(setting.device)
            start = time.perf_counter()
            found = run(*args)
            wait(setting.device)
            part.seconds.append(time.perf_counter() - start)
            return found

        return wrapped

    for counted, rounds in ((False, steps), (True, every + 1)):
        model = setting.make().to(setting.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        one = measure(lambda: "bare step", lambda m=model, o=optimizer: train(m, o, setting.x, setting.y, 1), counted)
        train(model, optimizer, setting.x, setting.y, 2)
        for _ in range(rounds):
            one()
        profile: Any = analysis.Profiler(model, optimizer, setting.x[:1], every=every)

        def booked(of: Any = profile) -> str:
            return "after_step, first of an interval" if of._step % every == 0 else "after_step, other"

        for name in ("before_step", "follow", "measure"):
            run = measure(lambda name=name: name, getattr(profile, f"_{name}"), counted)
            setattr(profile, f"_{name}", run)
        profile._book = measure(booked, profile._book, counted)
        with profile:
            train(model, optimizer, setting.x, setting.y, every)
            if not counted:
                # The first interval does not count.
                for name in set(parts) - {"bare step"}:
                    del parts[name]
            train(model, optimizer, setting.x, setting.y, rounds)
    for name, part in parts.items():
        print(f"{name:34s}{part.line()}")
    extra = sum(sum(part.seconds) for name, part in parts.items() if name != "bare step") / steps
    bare = sum(parts["bare step"].seconds) / steps
    print(f"a step with all its parts is {100 * extra / bare:.1f} % more than a bare one, every {every}")


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


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


# What a fresh process does for `--memory`, by its word.
MEMORY = ("bare", "profiled", "vmap")


def work_for_memory(what: str, setting: Setting) -> None:
    """One step and what belongs to it; prints the peak of this process in MB, and that before it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if what == "profiled":
        _, profile = setting.profiled(1, 1, 1)
        assert all(layer.kappa is not None for layer in profile.history.layers)
    else:
        setting.bare(1)
        if what == "vmap":
            kappas(setting.x, setting.y, 1e-3)
    # Linux counts in KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{(peak - before) * 1024 / 1e6:.1f}")


def print_memory(batch: int, size: int, repeats: int) -> None:
    """The least growth of the peak over some processes, which differ by what the allocator keeps."""
    command = [sys.executable, __file__, "--batch", str(batch), "--size", str(size), "--work"]
    found = {
        what: min(
            float(subprocess.run([*command, what], check=True, capture_output=True, text=True).stdout.split()[-1])
            for _ in range(repeats)
        )
        for what in MEMORY
    }
    for what in MEMORY:
        more = "" if what == "bare" else f", {found[what] - found['bare']:+.1f} MB beside a bare one"
        print(f"{what}: the peak grows by {found[what]:.1f} MB in two steps{more}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("convnet", "resnet18"), default="convnet")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--work", choices=MEMORY, help="what a process of --memory does")
    given = parser.parse_args()
    if given.memory:
        print(machine())
        print_memory(given.batch, given.size, given.repeats)
        return
    if given.work is None:
        print(machine())
    make = network if given.model == "convnet" else resnet18
    x = torch.randn(given.batch, 3, given.size, given.size, device=given.device)
    y = torch.randint(0, 10, (given.batch,), device=given.device)
    setting = Setting(make, x, y, given.device)
    if given.work is not None:
        work_for_memory(given.work, setting)
        return
    if given.parts:
        print_parts(setting, given.steps, given.every)
        return
    bare = watched = float("inf")
    for _ in range(given.repeats):
        bare = min(bare, setting.bare(given.steps) / given.steps)
        watched = min(watched, setting.profiled(given.steps, given.every, given.every)[0] / given.steps)
    clock = "CPU time" if given.device == "cpu" else "time"
    print(
        f"{given.model}, one step, batch {given.batch}, {clock}: bare {bare * 1e3:.1f} ms, profiled every "
        f"{given.every} {watched * 1e3:.1f} ms, {100 * (watched / bare - 1):.1f} % more"
    )
    if given.model == "convnet":
        compare(setting, bare, given.repeats)


def compare(setting: Setting, bare: float, repeats: int) -> None:
    """Noise terms at every step against gradients of samples."""
    each = stored = float("inf")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        seconds, profile = setting.profiled(1, 1, 0)
        each = min(each, seconds)
        ours = [float(layer.kappa[0]) for layer in profile.history.layers if layer.kappa is not None]
        stored = min(stored, seconds_of(lambda: theirs.extend(kappas(setting.x, setting.y, 1e-3)), setting.device))
    off = max(abs(a / b - 1) for a, b in zip(ours, theirs[: len(ours)], strict=True))
    extra = each - bare
    print(f"noise terms {extra * 1e3:.1f} ms, vmap {stored * 1e3:.1f} ms, {stored / extra:.1f}x; difference {off:.1e}")


if __name__ == "__main__":
    main()
