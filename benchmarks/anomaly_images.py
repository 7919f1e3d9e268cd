"""One class of MNIST or CIFAR-10 against all others: AUROC, and what no move of a length in raw pixels can spoil.

    python benchmarks/anomaly_images.py mnist MNIST --out images_mnist.json --seeds 0 1 2
    python benchmarks/anomaly_images.py cifar10 CIFAR10 --out images_cifar10.json
    python benchmarks/anomaly_images.py mnist MNIST --out attacked_mnist.json --attack --methods ours
    python benchmarks/anomaly_images.py figure --out images_mnist.json --png docs/anomaly_mnist.png

A detector learns from the training images of one class, with pixels in [0, 1], and ranks all test images. Ours is
`OneClassSDF` with an exact distance alone, behind a linear map of norm 1 at most. MNIST: 80 flats, behind a blur.
CIFAR-10: the nearest row, behind sums over squares of 8 x 8 pixels. Settings were chosen on training images only: of
MNIST on the classes 2, 5 and 8, of CIFAR-10 on the classes 1, 4 and 7, a part of each held out as normal. Results are
stored after each class, and a run goes on where it was stopped. Certified AUROC holds for moves of both classes.

With `--attack` the same detectors rank `--images` test images a class, half of them normal, and PGD in l2 moves the
anomalies, the normal images or both: 50 steps of 0.025 eps, 3 restarts, pixels stay in [0, 1]. Beside each AUROC that
it leaves stands the certified one of the same images, which is never above it.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from lipkit import sdf
from lipkit._files import write_whole
from lipkit.bound import Bound
from lipkit.certify import Moves, attacked_auroc, certifiable_auroc
from lipkit.certify.attacks import PGD, Constant
from lipkit.data import Examples, cifar10, mnist
from lipkit.estimators import OneClassSDF

# Of 255, as published.
EPS = (0, 8, 16, 36, 72)
# The kernel of the blur has the sum 1, and sums of p x p pixels over p are orthonormal, both up to rounding.
ROUNDING = 1 + 2.0**-40
# Means over ten classes.
PUBLISHED = {
    "mnist": {"OCSDF, published": (95.5, 93.2, 89.9, 78.4, 57.5)},
    "cifar10": {"OCSDF, published": (57.4, 53.1, 48.8, 38.4, 22.5)},
}

Score = Callable[[torch.Tensor], torch.Tensor]
Detect = Callable[[np.ndarray, np.ndarray, int], "Detected"]


@dataclass(frozen=True)
class Detected:
    """Scores of test images, their constant in raw pixels, and the score as torch differentiates it."""

    scores: np.ndarray
    bound: Bound
    score: Score


@dataclass(frozen=True)
class Setting:
    """One setting for all classes of a data set."""

    blur: float
    pool: int
    flats: int
    dim: int

    def prepare(self, images: np.ndarray) -> np.ndarray:
        """Rows of blurred and pooled pixels; a linear map of norm 1 at most."""
        n, channels, side, _ = images.shape
        if self.blur:
            images = gaussian_filter(images, (0, 0, self.blur, self.blur), mode="constant")
        if self.pool > 1:
            images = images.reshape(n, channels, side // self.pool, self.pool, -1, self.pool).sum((3, 5)) / self.pool
        return images.reshape(n, -1)

    def matrix(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The linear map, a row for each pixel."""
        pixels = int(np.prod(shape))
        return torch.from_numpy(self.prepare(np.eye(pixels).reshape(pixels, *shape)))


SETTINGS = {"mnist": Setting(0.5, 1, 80, 15), "cifar10": Setting(0.0, 8, 0, 0)}


def ours(setting: Setting) -> Detect:
    """`OneClassSDF`, an exact distance alone, behind the linear map."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Detected:
        detector = OneClassSDF(
            nearest=1.0, flats=setting.flats, flat_dim=setting.dim, standardise=False, random_state=seed
        ).fit(setting.prepare(train))
        matrix, field = setting.matrix(train.shape[1:]), detector.field_
        scores = detector.score_samples(setting.prepare(test))
        return Detected(scores, detector.bound_.scale(ROUNDING), lambda x: field(x.flatten(1) @ matrix))

    return detect


def nearest(train: np.ndarray, test: np.ndarray, seed: int) -> Detected:
    """Minus the distance to the nearest training image, of raw pixels."""
    del seed
    return _of_pixels(sdf.Points(torch.from_numpy(train.reshape(len(train), -1))), test)


def flats(train: np.ndarray, test: np.ndarray, seed: int) -> Detected:
    """Minus the distance to 40 flats of dimension 15, of raw pixels."""
    return _of_pixels(sdf.Flats.fit(torch.from_numpy(train.reshape(len(train), -1)), 40, 15, seed=seed), test)


def _of_pixels(field: sdf.Field, test: np.ndarray) -> Detected:
    scores = field(torch.from_numpy(test.reshape(len(test), -1))).numpy()
    return Detected(scores, field.bound, lambda x: field(x.flatten(1)))


def certify(found: Detected, normal: torch.Tensor) -> dict[str, list[float]]:
    """Certified AUROC of all test images."""
    scores = torch.from_numpy(found.scores)
    radii = {"certified": EPS, "curve": range(0, 129, 8)}
    return {
        name: [100 * certifiable_auroc(scores, normal, found.bound, e / 255) for e in chosen]
        for name, chosen in radii.items()
    }


def attack(found: Detected, tests: np.ndarray, normal: torch.Tensor, images: int) -> dict[str, list[float]]:
    """Certified and attacked AUROC of some test images, half of them normal, for each choice of who moves."""
    draw = torch.Generator().manual_seed(0)
    halves = [(normal == one).nonzero().flatten() for one in (0, 1)]
    chosen = torch.cat([half[torch.randperm(len(half), generator=draw)[: images // 2]] for half in halves])
    x, labels, scores = torch.from_numpy(tests)[chosen], normal[chosen], torch.from_numpy(found.scores)[chosen]
    result: dict[str, list[float]] = {}
    for moves in Moves:
        proven = [100 * certifiable_auroc(scores, labels, found.bound, e / 255, moves) for e in EPS]
        met = [proven[0]]
        for eps in (e / 255 for e in EPS[1:]):
            search = PGD(
                eps, low=0.0, high=1.0, steps=50, step_size=0.025 * eps, restarts=3, schedule=Constant()
            )  # fmt: skip
            met.append(100 * attacked_auroc(found.score, x, labels, search, moves, torch.Generator().manual_seed(0)))
        result |= {f"{moves}: certified": proven, f"{moves}: attacked": met}
        print(
            f"  {moves} move".ljust(24),
            " ".join(f"{p:.2f} <= {m:.2f}" for p, m in zip(proven, met, strict=True)),
            flush=True,
        )
        if any(p > m for p, m in zip(proven, met, strict=True)):
            raise SystemExit(f"A certified AUROC is above the attacked one where {moves} move: it is not sound.")
    return result


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mnist", "cifar10", "figure"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["ours", "1-NN", "40 flats"])
    parser.add_argument("--classes", type=int, nargs="+", default=range(10))
    parser.add_argument("--attack", action="store_true", help="attacked beside certified AUROC, in a file of its own")
    parser.add_argument("--images", type=int, default=500, help="test images that are attacked, for each class")
    request = parser.parse_args()
    torch.set_num_threads(1)
    if request.what == "figure":
        draw(json.loads(request.out.read_text()), request.png)
        return
    read = {"mnist": mnist, "cifar10": cifar10}[request.what]
    (x, y), (tests, labels) = (_arrays(read(request.data, train)) for train in (True, False))
    detectors = {"ours": ours(SETTINGS[request.what]), "1-NN": nearest, "40 flats": flats}
    results = json.loads(request.out.read_text()) if request.out.exists() else {}
    for method in request.methods:
        for seed in request.seeds if method != "1-NN" else request.seeds[:1]:
            for one in request.classes:
                cell = results.setdefault(method, {}).setdefault(str(one), {})
                if str(seed) in cell:
                    continue
                start = time.process_time()
                found = detectors[method](x[y == one], tests, seed)
                normal = torch.from_numpy((labels == one).astype(np.int64))
                row = attack(found, tests, normal, request.images) if request.attack else certify(found, normal)
                cell[str(seed)] = {**row, "seconds": round(time.process_time() - start, 1)}
                write_whole(request.out, json.dumps(results, indent=1).encode())
                print(
                    method, seed, one, {k: np.round(v, 2).tolist() for k, v in row.items() if k != "curve"}, flush=True
                )
    if request.attack:
        print_attacks(results)
    else:
        print_table(results, request.what)


def _arrays(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    return examples.inputs.double().numpy(), examples.labels.numpy()


def mean(rows: dict[str, dict[str, dict[str, list[float]]]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over classes and seeds, and the deviation of the seeds' means."""
    seeds = sorted({seed for cells in rows.values() for seed in cells})
    means = [np.mean([cells[seed][what] for cells in rows.values() if seed in cells], 0) for seed in seeds]
    return np.mean(means, 0), np.std(means, 0)


def print_attacks(results: dict[str, dict[str, dict[str, dict[str, list[float]]]]]) -> None:
    """Means over classes, certified and attacked, for each choice of who moves."""
    for method, rows in results.items():
        for moves in Moves:
            for what in ("certified", "attacked"):
                found, _ = mean(rows, f"{moves}: {what}")
                print(method.ljust(10), str(moves).ljust(16), what.ljust(10), *(f"{v:6.2f}" for v in found))


def print_table(results: dict[str, dict[str, dict[str, dict[str, list[float]]]]], data: str) -> None:
    """Means over classes, then clean AUROC of each class."""
    for method, rows in results.items():
        found, spread = mean(rows, "certified")
        print(method.ljust(18), *(f"{v:6.2f}" for v in found), "+-", *(f"{v:5.2f}" for v in spread))
    for method, values in PUBLISHED[data].items():
        print(method.ljust(18), *(f"{v:6.2f}" for v in values))
    for method, rows in results.items():
        clean = [np.mean([cell["certified"][0] for cell in cells.values()]) for cells in rows.values()]
        print(method.ljust(18), *(f"{v:6.2f}" for v in clean))


def draw(results: dict[str, dict[str, dict[str, dict[str, list[float]]]]], png: Path) -> None:
    """Certified AUROC against the radius."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    names = {"ours": "ours: 80 flats behind a blur", "40 flats": "40 flats", "1-NN": "nearest neighbour"}
    for method, rows in results.items():
        axis.plot(range(0, 129, 8), mean(rows, "curve")[0], label=names[method])
    axis.plot(EPS, PUBLISHED["mnist"]["OCSDF, published"], "o--", color="gray", label="OCSDF, published")
    axis.set(xlabel="radius of moves, in 1/255 (l2)", ylabel="certified AUROC, %", ylim=(50, 100), xlim=(0, 128))
    axis.set_title("MNIST, one class against nine, mean of ten classes", fontsize=10)
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(png, dpi=150)


if __name__ == "__main__":
    main()
