"""One class of MNIST or CIFAR-10 against all others: AUROC, and what no move of a length in raw pixels can spoil.

    python benchmarks/anomaly_images.py mnist MNIST --out images_mnist.json --seeds 0 1 2
    python benchmarks/anomaly_images.py cifar10 CIFAR10 --out images_cifar10.json
    python benchmarks/anomaly_images.py figure --out images_mnist.json --png docs/anomaly_mnist.png

A detector learns from the training images of one class, with pixels in [0, 1], and ranks all test images. Ours is
`OneClassSDF` with an exact distance alone, behind a linear map of norm 1 at most. MNIST: 80 flats, behind a blur.
CIFAR-10: the nearest row, behind sums over squares of 8 x 8 pixels. Settings were chosen on training images only: of
MNIST on the classes 2, 5 and 8, of CIFAR-10 on the classes 1, 4 and 7, a part of each held out as normal. Results are
stored after each class, and a run goes on where it was stopped. Certified AUROC holds for moves of both classes.
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
from lipkit.certify import certifiable_auroc
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

Scores = tuple[np.ndarray, Bound]


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


SETTINGS = {"mnist": Setting(0.5, 1, 80, 15), "cifar10": Setting(0.0, 8, 0, 0)}


def ours(setting: Setting) -> Callable[[np.ndarray, np.ndarray, int], Scores]:
    """`OneClassSDF`, an exact distance alone, behind the linear map."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
        detector = OneClassSDF(
            nearest=1.0, flats=setting.flats, flat_dim=setting.dim, standardise=False, random_state=seed
        ).fit(setting.prepare(train))
        return detector.score_samples(setting.prepare(test)), detector.bound_.scale(ROUNDING)

    return detect


def nearest(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """Minus the distance to the nearest training image, of raw pixels."""
    del seed
    field = sdf.Points(torch.from_numpy(train.reshape(len(train), -1)))
    return field(torch.from_numpy(test.reshape(len(test), -1))).numpy(), field.bound


def flats(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """Minus the distance to 40 flats of dimension 15, of raw pixels."""
    field = sdf.Flats.fit(torch.from_numpy(train.reshape(len(train), -1)), 40, 15, seed=seed)
    return field(torch.from_numpy(test.reshape(len(test), -1))).numpy(), field.bound


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
                scores, bound = detectors[method](x[y == one], tests, seed)
                normal = torch.from_numpy((labels == one).astype(np.int64))
                cell[str(seed)] = {
                    "certified": [
                        100 * certifiable_auroc(torch.from_numpy(scores), normal, bound, e / 255) for e in EPS
                    ],
                    "curve": [
                        100 * certifiable_auroc(torch.from_numpy(scores), normal, bound, e / 255)
                        for e in range(0, 129, 8)
                    ],
                    "seconds": round(time.process_time() - start, 1),
                }
                write_whole(request.out, json.dumps(results, indent=1).encode())
                print(method, seed, one, [round(v, 2) for v in cell[str(seed)]["certified"]], flush=True)
    print_table(results, request.what)


def _arrays(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    return examples.inputs.double().numpy(), examples.labels.numpy()


def mean(rows: dict[str, dict[str, dict[str, list[float]]]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over classes and seeds, and the deviation of the seeds' means."""
    seeds = sorted({seed for cells in rows.values() for seed in cells})
    means = [np.mean([cells[seed][what] for cells in rows.values() if seed in cells], 0) for seed in seeds]
    return np.mean(means, 0), np.std(means, 0)


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
