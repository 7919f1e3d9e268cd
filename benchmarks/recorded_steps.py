"""Time of one training step of a recipe: step by step, compiled, and recorded as one CUDA graph (`graph`).

    python benchmarks/recorded_steps.py --device cuda

Images and labels are drawn: the time does not depend on them. A row is a run of the training loop itself; its time is
the median over the epochs after the first, so that compiling, recording and checkpoints do not count. `loss` is that of
the last step: without augmentation, rows of one recipe agree up to the order of sums.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.training import Recipe, Sets
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.data import Examples

RECIPES = Path(__file__).resolve().parent.parent / "recipes"


@dataclass(frozen=True)
class Case:
    """A recipe, the shape of its images, steps in an epoch, and the settings to compare."""

    file: str
    shape: tuple[int, ...]
    steps: int
    settings: tuple[dict[str, bool], ...]


PLAIN, COMPILED, RECORDED = {}, {"compile": True}, {"graph": True}
CASES = {
    "crm": Case("mnist_crm", (1, 28, 28), 40, (PLAIN, RECORDED, COMPILED, COMPILED | RECORDED)),
    "sll": Case("cifar10_sll", (3, 32, 32), 5, (PLAIN, RECORDED)),
}


def drawn_data(case: Case, quick: bool) -> type[Recipe]:
    """The recipe with random images and labels in place of its data."""
    found: Any = recipe_class(RECIPES / f"{case.file}.py")

    class Drawn(found):
        def sets(self) -> Sets:
            generator = torch.Generator().manual_seed(0)
            count = 2 * self.batch if quick else case.steps * self.batch
            images = torch.rand(count, *case.shape, generator=generator)
            labels = torch.randint(10, (count,), generator=generator)
            examples = Examples(images, labels, tuple("0123456789"))
            return Sets(examples, examples.at(range(2)))

    return Drawn


def time_step(recipe: Recipe, device: torch.device) -> tuple[float, float]:
    """The median seconds of a step, and the last loss."""
    ends: list[tuple[int, float, float]] = []

    def report(done: int, total: int, loss: float) -> None:
        del total
        # Reading the loss waited for the device.
        ends.append((done, time.perf_counter(), loss))

    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder), Team(device), report)
    epoch = ends[-1][0] // recipe.epochs
    whole = [(done, moment) for done, moment, _ in ends if done % epoch == 0]
    times = [(late - early) / epoch for (_, early), (_, late) in pairwise(whole)]
    return statistics.median(times), ends[-1][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="tiny networks, without graphs: only to see that it runs")
    args = parser.parse_args()
    device = torch.device(args.device)
    for name in args.cases:
        case = CASES[name]
        made: Any = drawn_data(case, args.quick)
        base = replace(made(data=Path()).quick(), epochs=3) if args.quick else made(data=Path(), epochs=args.epochs)
        for setting in (PLAIN,) if args.quick else case.settings:
            seconds, loss = time_step(replace(base, **setting), device)
            words = " ".join(f"--{key}=true" for key in setting) or "step by step"
            print(f"{case.file:12} {words:28} {1000 * seconds:8.2f} ms a step   loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    main()
