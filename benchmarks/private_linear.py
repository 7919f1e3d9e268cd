"""Private training of a linear head on scattering features: accuracy on the test set at a given epsilon.

    python benchmarks/private_linear.py --data FOLDER --which mnist --epsilon 2.93 --runs 3

Features are those of `lnn.Scattering2d`, computed once; they do not depend on the data set. Channels are standardised
with statistics of another, public data set, found in the same folder (of Fashion-MNIST for MNIST, of MNIST for
Fashion-MNIST); those of CIFAR-10 by the mean and the deviation of each channel of the same image, which needs no data
set. Records are divided by their norm. The test set is evaluated once a run. Settings were chosen on the other data set
(docs/results.md says how), so that choosing them costs no privacy.

FOLDER holds mnist/, fashion-mnist/ and cifar10/ as `lipkit.data` reads them.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from lipkit import data, losses, privacy
from lipkit import nn as lnn

READERS = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist, "cifar10": data.cifar10}
# Whose statistics standardise the channels.
PUBLIC = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@dataclass(frozen=True)
class Settings:
    """The public numbers of a run besides the budget."""

    batch: int = 4096
    steps: int = 400
    clip: float = 0.1
    tau: float = 8.0
    rate: float = 200.0


def features(images: Tensor) -> Tensor:
    """Scattering features of all images, in float16: 16 bits are more than the noise leaves."""
    layer = lnn.Scattering2d(tuple(images.shape[-2:]))
    with torch.no_grad():
        return torch.cat([layer(part).half() for part in images.split(100)])


def channel_statistics(found: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over a data set."""
    means = torch.stack([part.float().mean((0, 2, 3)) for part in found.split(1000)]).mean(0)
    squares = torch.stack([part.float().square().mean((0, 2, 3)) for part in found.split(1000)]).mean(0)
    return means[:, None, None], (squares - means.square()).sqrt()[:, None, None]


def records(found: Tensor, public: tuple[Tensor, Tensor] | None) -> Tensor:
    """Standardised features as rows of norm 1: with public statistics, or with those of each channel of the record."""
    rows = []
    for part in found.split(1000):
        wide = part.float()
        if public is None:
            wide = nn.functional.group_norm(wide, wide.shape[1], eps=1e-5)
        else:
            wide = (wide - public[0]) / public[1]
        rows.append(nn.functional.normalize(wide.flatten(1), dim=1))
    return torch.cat(rows)


def train(x: Tensor, y: Tensor, plan: privacy.Plan, settings: Settings, ledger: Path) -> tuple[nn.Linear, float]:
    """A linear head without bias, and the epsilon that was spent."""
    model = nn.Linear(x.shape[1], 10, bias=False)
    nn.init.zeros_(model.weight)
    with privacy.Training(
        model,
        losses.TauCrossEntropy(settings.tau, divided=True),
        torch.optim.SGD(model.parameters(), settings.rate),
        (x, y),
        plan,
        privacy.Inputs((x.shape[1],), 1.0),
        ledger=ledger,
        clip=privacy.Fixed(settings.clip),
    ) as training:
        for _ in range(plan.steps):
            training.step()
        return model, training.spent().epsilon


def main() -> None:
    """Print a line for each run, and the mean and the standard deviation over them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--which", choices=sorted(READERS), required=True)
    parser.add_argument("--epsilon", type=float, default=2.93)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--runs", type=int, default=3)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    chosen = parser.parse_args()
    settings = Settings(**{name: getattr(chosen, name) for name in vars(Settings())})

    start = time.perf_counter()
    read, folder = READERS[chosen.which], chosen.data / chosen.which
    known, unseen = read(folder, True), read(folder, False)
    other = PUBLIC.get(chosen.which)
    public = None if other is None else channel_statistics(features(READERS[other](chosen.data / other).inputs))
    x, tests = (records(features(part.inputs), public) for part in (known, unseen))
    prepared = time.perf_counter() - start
    whole = settings.batch >= len(x)
    plan = privacy.Plan(
        records=len(x),
        batch=min(settings.batch, len(x)),
        steps=settings.steps,
        delta=chosen.delta,
        epsilon=chosen.epsilon,
        sampling=privacy.Whole() if whole else privacy.Poisson(),
    )
    print(f"{chosen.which}: {settings}, sigma {plan.sigma:.4f}; {plan}")
    print(f"features {prepared:.0f} s, standardised by {other or 'each record itself'}", flush=True)
    right, spent = [], 0.0
    for run in range(chosen.runs):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as ledgers:
            model, spent = train(x, known.labels, plan, settings, Path(ledgers) / "ledger")
        with torch.no_grad():
            right.append(100 * float((model(tests).argmax(1) == unseen.labels).double().mean()))
        print(f"run {run + 1}: {right[-1]:.2f} in {time.perf_counter() - start:.0f} s", flush=True)
    spread = statistics.stdev(right) if len(right) > 1 else float("nan")
    print(
        f"accuracy {statistics.mean(right):.2f} +- {spread:.2f} (standard deviation of {len(right)} runs), epsilon "
        f"{spent:.4f} at delta {chosen.delta:g} (dp-accounting {version('dp-accounting')})"
    )


if __name__ == "__main__":
    main()
