"""A private step beside the same step without privacy, and beside clipping: time and memory.

Claim: `privacy.Training` takes little more than the same step without privacy, whatever the batch, because no gradient
of a single record is ever made; clipping takes a multiple, by anybody's code.

    python benchmarks/privacy.py [--models mlp cnn] [--batches 256 4096] [--repeats 9] [--no-memory]
    python benchmarks/privacy.py --device cuda --models 130K 510K 2M --batches 4096 10000 50000

One process measures all sides by turns, and prints medians of processor time and of time on the clock; a step is a
Poisson batch drawn from a table, forward, backward, noise, optimizer and projection. Sides:

    plain       no privacy; its batch is drawn and copied in the same way
    private     `privacy.Training.step()`
    vmap        clipping by `torch.func.vmap(grad)`, some records at a time (Béthune 2024, algorithm 12)
    ghost       clipping by norms from inputs and cotangents of layers, and a second backward pass (Li et al. 2022)
    Opacus      its hooks and its ghost clipping, where it is installed; else its published figures are named

Peaks of memory are those of a process for each side: of the device, or of the process itself, where the growth of the
steps over what lay there before them is printed too.
"""

import argparse
import importlib
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from clipped_steps import ghost_gradients, vmap_gradients
from timing import machine
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit import privacy

TABLE = 60_000
CLIP, SIGMA, RATE = 1.0, 1.0, 0.05
# Records whose gradients are in memory at once, by `vmap` and by the hooks of Opacus.
PART = 256
Step = Callable[[], object]
PUBLISHED = (
    "Opacus is not installed. Its figures, measured for lipkit with Opacus 1.6.0 and torch 2.13, one thread, batch "
    "512: its MNIST CNN, hooks 1.7 to 2.4 and ghost 1.4 to 1.6 plain steps; 784-128-128-10, hooks 57 to 66, ghost 1.5 "
    "to 2.2."
)


def vgg(f: int) -> nn.Module:
    """Five layers with 129,888 weights for f = 32, 509,632 for 64 and 2,018,688 for 128 (Béthune 2024, figure 6.7)."""
    return nn.Sequential(
        *(nn.Conv2d(3, f, 5, padding=2, bias=False), lnn.MaxMin(), lnn.L2NormPool2d(2)),
        *(nn.Conv2d(f, 2 * f, 3, padding=1, bias=False), lnn.MaxMin(), lnn.L2NormPool2d(2)),
        *(nn.Conv2d(2 * f, 4 * f, 3, padding=1, bias=False), lnn.MaxMin(), lnn.L2NormPool2d(8)),
        *(nn.Flatten(), nn.Linear(4 * f, 8 * f, bias=False), lnn.MaxMin(), nn.Linear(8 * f, 10, bias=False)),
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 10)),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), lnn.MaxMin(), nn.Linear(128, 10))


GRAY, COLOR = (1, 28, 28), (3, 32, 32)
# What makes the model, the shape of a record, and whether weights are projected after each step.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "mlp": (mlp, GRAY, False),
    "mlp projected": (mlp, GRAY, True),
    "mlp of lnn": (
        lambda: nn.Sequential(nn.Flatten(), lnn.Linear(784, 128), lnn.MaxMin(), lnn.Linear(128, 10)),
        GRAY,
        False,
    ),
    "cnn": (cnn, GRAY, False),
    "130K": (lambda: vgg(32), COLOR, True),
    "510K": (lambda: vgg(64), COLOR, True),
    "2M": (lambda: vgg(128), COLOR, True),
}
SIDES = ("plain", "private", "vmap", "ghost", "Opacus hooks", "Opacus ghost")


class Bench:
    """A model, a table of records and a batch size: what all sides have in common."""

    def __init__(self, name: str, batch: int, device: torch.device, folder: Path) -> None:
        self.make, self.shape, self.projects = MODELS[name]
        self.name, self.batch, self.device, self.folder = name, batch, device, folder
        generator = torch.Generator().manual_seed(0)
        self.inputs = privacy.Inputs(self.shape, radius=10.0)
        self.x = torch.rand(TABLE, *self.shape, generator=generator).to(device)
        self.y = torch.randint(10, (TABLE,), generator=generator).to(device)
        self.loss = nn.CrossEntropyLoss()
        self.opened: list[privacy.Training] = []

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().to(self.device)

    def after(self, model: nn.Module) -> Step | None:
        return (lambda: lnn.project(model, linear=lnn.Bjorck())) if self.projects else None

    def rows(self) -> tuple[Tensor, Tensor]:
        chosen = (torch.rand(TABLE) < self.batch / TABLE).nonzero().flatten().to(self.device)
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)

    def clean_rows(self) -> None:
        """Records on the ball, as `Training` keeps them: once, not in every step."""
        for part in self.x.split(4096):
            part.copy_(self.inputs(part))

    def side(self, name: str) -> Step | None:
        """One step of a side, to be repeated; None where it is not there."""
        if name == "private":
            return self.private()
        self.clean_rows()
        if name.startswith("Opacus"):
            return self.opacus(name.endswith("ghost")) if importlib.util.find_spec("opacus") else None
        if name != "plain" and self.name.endswith("lnn"):
            # Clipping acts on leaves; a parametrization in its graph would be computed for each record.
            return None
        return {"plain": self.plain, "vmap": self.vmap, "ghost": self.ghost}[name]()

    def plain(self) -> Step:
        model = self.model()
        optimizer, after = torch.optim.SGD(model.parameters(), lr=RATE), self.after(model)

        def step() -> None:
            x, y = self.rows()
            optimizer.zero_grad()
            self.loss(model(x), y).backward()
            optimizer.step()
            if after is not None:
                after()

        return step

    def private(self) -> Step:
        model = self.model()
        plan = privacy.Plan(TABLE, self.batch, 10_000, 1e-5, sigma=SIGMA)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        training = privacy.Training(
            *(model, self.loss, optimizer, (self.x, self.y), plan, self.inputs),
            ledger=self.folder / f"{self.name} {self.batch} {len(self.opened)}",
            after=self.after(model),
            chunk=max(4096, self.batch + 6 * int(self.batch**0.5) + 6) if self.device.type == "cuda" else 4096,
        )
        self.opened.append(training)
        return training.step

    def vmap(self) -> Step:
        return self._clipped(lambda model, x, y: vmap_gradients(model, self.loss, x, y, CLIP, PART))

    def ghost(self) -> Step:
        return self._clipped(lambda model, x, y: ghost_gradients(model, x, y, CLIP))

    def _clipped(self, gradients: Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]) -> Step:
        model = self.model()
        optimizer, after = torch.optim.SGD(model.parameters(), lr=RATE), self.after(model)

        def step() -> None:
            found = gradients(model, *self.rows())
            for name, p in model.named_parameters():
                p.grad = (found[name] + SIGMA * CLIP * torch.randn_like(p)) / self.batch
            optimizer.step()
            if after is not None:
                after()

        return step

    def opacus(self, ghost: bool) -> Step | None:
        if self.name.endswith("lnn"):
            return None
        found: Any = importlib.import_module("opacus.optimizers")
        samplers: Any = importlib.import_module("opacus.grad_sample")
        model = self.model()
        sgd, after = torch.optim.SGD(model.parameters(), lr=RATE), self.after(model)
        noise = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, "expected_batch_size": self.batch}
        if ghost:
            losses: Any = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
            wrapped = samplers.GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
            optimizer = found.DPOptimizerFastGradientClipping(sgd, **noise)
            loss = losses.DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(), "mean")
        else:
            wrapped, optimizer, loss = samplers.GradSampleModule(model), found.DPOptimizer(sgd, **noise), self.loss

        def step() -> None:
            x, y = self.rows()
            parts = [(x, y)] if ghost else list(zip(x.split(PART), y.split(PART), strict=True))
            for k, (some, labels) in enumerate(parts, 1):
                optimizer.zero_grad()
                loss(wrapped(some), labels).backward()
                if not ghost:
                    optimizer.signal_skip_step(do_skip=k < len(parts))
                optimizer.step()
            if after is not None:
                after()

        return step


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(step: Step, device: torch.device) -> tuple[float, float]:
    """Seconds of all threads, and on the clock."""
    wait(device)
    used, clock = time.process_time(), time.perf_counter()
    step()
    wait(device)
    return time.process_time() - used, time.perf_counter() - clock


def compare(name: str, batch: int, given: argparse.Namespace, sides: list[str]) -> None:
    device = torch.device(given.device)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(name, batch, device, Path(folder))
        made = {side: bench.side(side) for side in sides}
        steps = {side: step for side, step in made.items() if step is not None}
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in steps}
        for turn in range(given.repeats + 2):
            for side, step in list(steps.items()):
                try:
                    found = timed(step, device)
                except torch.OutOfMemoryError:
                    print(f"{name}, batch {batch}, {side}: out of memory")
                    del steps[side], times[side]
                    continue
                if turn >= 2:
                    times[side].append(found)
        for training in bench.opened:
            training.close()
    peaks = {} if given.no_memory else {side: memory(side, name, batch, given.device) for side in times}
    middle = {
        side: [1e3 * statistics.median(column) for column in zip(*rows, strict=True)] for side, rows in times.items()
    }
    for side, (used, clock) in middle.items():
        against = f"{used / middle['plain'][0]:5.2f} x" if "plain" in middle else ""
        print(
            f"{name:>14} {batch:>6}  {side:>13}  processor {used:8.1f} ms {against}  clock {clock:8.1f} ms  "
            f"{peaks.get(side, '')}",
            flush=True,
        )


def memory(side: str, name: str, batch: int, device: str) -> str:
    """The peak of a process that makes this side's steps alone, in its own words."""
    command = [sys.executable, __file__, "--device", device, "--models", name, "--batches", str(batch), "--peak", side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else "memory: the process ended with an error"


def peak(side: str, name: str, batch: int, device: torch.device) -> str:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(name, batch, device, Path(folder))
        step = bench.side(side)
        assert step is not None
        if side == "private":
            # `Training` has its own copy of the records; whoever calls it need not keep another.
            bench.x = torch.empty(0)
        if device.type == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        else:
            before = _resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
        for _ in range(3):
            step()
        highest = torch.cuda.max_memory_allocated() if device.type == "cuda" else _resident("VmHWM")
        for training in bench.opened:
            training.close()
    return f"memory {highest / 2**20:6.0f} MiB, of it steps {(highest - before) / 2**20:6.0f}"


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mlp", "mlp projected", "mlp of lnn", "cnn"])
    parser.add_argument("--batches", nargs="+", type=int, default=[4096, 256])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--peak", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # float32 is meant, by everybody: a private step refuses less.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if given.peak is not None:
        print(peak(given.peak, given.models[0], given.batches[0], torch.device(given.device)))
        return
    print(machine())
    if any(side.startswith("Opacus") for side in given.sides) and not importlib.util.find_spec("opacus"):
        print(PUBLISHED)
    for name in given.models:
        for batch in given.batches:
            compare(name, batch, given, given.sides)


if __name__ == "__main__":
    main()
