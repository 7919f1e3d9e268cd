"""Private scores on tables: AUROC at epsilon 1 on eight of the tables of Béthune 2024, beside both of its columns.

    python benchmarks/private_tables.py --data ADBENCH [--tables magic.gamma,yeast] [--epsilon 1] [--runs 3]
    python benchmarks/private_tables.py --data ADBENCH --tables mammography,satellite,annthyroid       (for choosing)

ADBENCH is the folder of the .npz files of ADBench. Each run draws 20 % of the rows, stratified, for the test; at most
--rows of the others train, and the public number of records is how many they are. Delta is the largest power of ten
below 1/records. A linear score is trained on frozen random features: cosines and sines of random directions, and the
standardised columns themselves, together of norm at most 1.

Standardising is paid for: `privacy.release_moments` of the columns on a public ball, whose center and radius are
PUBLIC_BALL, and the plan counts the release. Columns of the files marked None there are standardised in the files, by
all rows, test rows included; so they are in the published columns, and what that tells is not counted.

Claim: one epsilon for preparation and training together, no setting chosen on the eight tables.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from timing import machine
from torch import Tensor, nn

from lipkit import losses, privacy

# What is known of the columns of a table beforehand: the center of each column, and a radius that holds a usual column;
# the ball of the whole row is larger by the root of the number of columns. None: the file is standardised.
PUBLIC_BALL: dict[str, tuple[float, float] | None] = {
    "ALOI": (0.5, 0.5),
    "campaign": (0.5, 0.5),
    "celeba": (0.5, 0.5),
    "donors": (0.5, 0.5),
    "magic.gamma": None,
    "shuttle": (0.0, 100.0),
    "skin": None,
    "yeast": None,
}
# AUROC of DP-SGD (Opacus) and of clipless training, best of validation, at epsilon 1 (Béthune 2024, table B.4).
PUBLISHED = {
    "ALOI": (56.5, 56.2),
    "campaign": (90.0, 82.2),
    "celeba": (96.6, 96.5),
    "donors": (100.0, 100.0),
    "magic.gamma": (90.7, 89.7),
    "shuttle": (98.3, 99.4),
    "skin": (100.0, 99.8),
    "yeast": (66.8, 75.1),
}


@dataclass(frozen=True)
class Settings:
    """The public numbers of a run besides the budget; the same for all tables."""

    rows: int = 100_000
    frequencies: int = 200
    bandwidth: float = 1.0
    share: float = 0.125
    steps: int = 200
    tau: float = 4.0
    rate: float = 8.0
    momentum: float = 0.9
    noise_of_moments: float = 10.0


def read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Columns and labels of a table, whatever the number that its file begins with."""
    (file,) = folder.glob(f"*_{name}.npz")
    with np.load(file, allow_pickle=False) as found:
        return found["X"].astype(np.float64), found["y"].astype(np.int64)


def standardised(x: Tensor, test: Tensor, name: str, noise: float) -> tuple[Tensor, Tensor, list[privacy.Releases]]:
    """Both parts by noised moments of the first one, and what that is billed as."""
    known = PUBLIC_BALL.get(name)
    if known is None:
        return x, test, []
    radius = known[1] * math.sqrt(x.shape[1])
    ball = privacy.Inputs((x.shape[1],), radius, center=known[0])
    moments = privacy.release_moments(x, ball, len(x), noise)
    # A variance below the noise that it was released with says nothing; no column is stretched by more than that.
    floor = math.sqrt(2) * noise * radius**2 / len(x)
    deviation = (moments.variance + floor).sqrt()
    first, second = ((ball(part) - moments.mean) / deviation for part in (x, test))
    return first, second, [moments.releases]


def features(x: Tensor, directions: Tensor) -> Tensor:
    """Half of the squared norm is that of cosines and sines, which is 1; the other that of the columns, cut at 1."""
    ball = privacy.Inputs((x.shape[1],), 2 * math.sqrt(x.shape[1]))
    angles = x @ directions
    waves = torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(directions.shape[1])
    return torch.cat([waves, ball(x) / ball.radius], 1).float() / math.sqrt(2)


def train(x: Tensor, y: Tensor, plan: privacy.Plan, settings: Settings, ledger: Path) -> nn.Linear:
    """The average of the second half of the weights of a linear score."""
    model = nn.Linear(x.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), settings.rate, settings.momentum, settings.momentum)
    average = torch.zeros_like(model.weight)
    with privacy.Training(
        model,
        losses.TauBCE(settings.tau, divided=True),
        optimizer,
        (x, y[:, None].float()),
        plan,
        privacy.Inputs((x.shape[1],), 1.0),
        ledger=ledger,
    ) as training:
        for step in range(plan.steps):
            training.step()
            if 2 * step >= plan.steps:
                average += model.weight.detach() / (plan.steps - plan.steps // 2)
    model.weight.data.copy_(average)
    return model


def run(x: np.ndarray, y: np.ndarray, name: str, epsilon: float, settings: Settings, seed: int) -> tuple[float, str]:
    """AUROC on the test rows in percent, and the plan in a sentence."""
    known, unseen, labels, truth = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    chosen = np.random.default_rng(seed).permutation(len(known))[: settings.rows]
    rows, test = torch.from_numpy(known[chosen]), torch.from_numpy(unseen)
    rows, test, others = standardised(rows, test, name, settings.noise_of_moments)
    width = settings.bandwidth / math.sqrt(rows.shape[1])
    chance = torch.Generator().manual_seed(seed)
    directions = width * torch.randn(rows.shape[1], settings.frequencies, generator=chance, dtype=torch.float64)
    plan = privacy.Plan(
        records=len(rows),
        batch=max(1, round(settings.share * len(rows))),
        steps=settings.steps,
        delta=privacy.usual_delta(len(rows)),
        epsilon=epsilon,
        others=others,
    )
    with tempfile.TemporaryDirectory() as folder:
        labels_of_rows = torch.from_numpy(labels[chosen])
        model = train(features(rows, directions), labels_of_rows, plan, settings, Path(folder) / "ledger")
    with torch.no_grad():
        scores = model(features(test, directions)).squeeze(1)
    return 100 * float(roc_auc_score(truth, scores.numpy())), str(plan)


def main() -> None:
    """A line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(PUBLIC_BALL))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    for field, value in vars(Settings()).items():
        parser.add_argument(f"--{field}", type=type(value), default=value)
    chosen = parser.parse_args()
    settings = Settings(**{field: getattr(chosen, field) for field in vars(Settings())})
    print(machine(), settings)
    better = 0
    for name in chosen.tables.split(","):
        x, y = read(chosen.data, name)
        start, found, said = time.perf_counter(), [], ""
        for seed in range(chosen.runs):
            area, said = run(x, y, name, chosen.epsilon, settings, seed)
            found.append(area)
        mean, spread = statistics.mean(found), statistics.stdev(found) if len(found) > 1 else math.nan
        beside = PUBLISHED.get(name)
        words = "" if beside is None else f", published DP-SGD {beside[0]}, clipless {beside[1]}"
        better += beside is not None and mean >= max(beside)
        seconds = (time.perf_counter() - start) / chosen.runs
        print(f"{name}: AUROC {mean:.2f} +- {spread:.2f}{words}; {seconds:.0f} s a run; {said}", flush=True)
    print(f"at least the better published column on {better} tables")


if __name__ == "__main__":
    main()
