"""What radii say of a test set: certified accuracy against the radius, the average radius, the best of several runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import scipy
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level, clopper_pearson
from lipkit.certify.evaluate.proportion import Proportion
from lipkit.errors import ArgumentError, RecordError, ShapeError

_COLUMNS = ["idx", "label", "predict", "radius", "correct", "time"]


class RadiusMean(NamedTuple):
    """A mean of radii over a sample of images, and an interval of that of all images; the interval is an estimate."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class CertifiedSet:
    """A test set under one classifier: which images are right, and within which radius.

    Each radius of a smoothed classifier holds with probability 1 - alpha by itself, so of n images at most alpha n are
    expected to be certified falsely.

    Args:
        name: What figures and tables call it.
        correct: Which images have their true class; False where the classifier abstains.
        radius: The certified radius of each image, whatever its class.
    """

    name: str
    correct: Bool[Tensor, " images"]
    radius: Float64[Tensor, " images"]

    def __post_init__(self) -> None:
        if self.correct.shape != self.radius.shape or self.radius.ndim != 1 or not len(self.radius):
            raise ShapeError(
                f"A test set has one radius for each image and at least one image, got {tuple(self.radius.shape)} "
                f"radii and {tuple(self.correct.shape)} answers."
            )
        if not bool((self.radius >= 0).all()):
            raise ArgumentError(f"Radii of {self.name} are at least 0, got {float(self.radius.min())}.")

    def accuracy(self, eps: float, level: float = 0.95) -> Proportion:
        """The share of images that are right with a radius above `eps`, with the interval of Clopper and Pearson.

        Above, not at: a radius is that of an open ball. At 0 it is the share that is right and not abstained on.
        """
        if not eps >= 0:
            raise ArgumentError(f"A radius is at least 0, got {eps}.")
        return Proportion.of(int((self.correct & (self.radius > eps)).sum()), len(self.radius), level)

    def average_radius(self, level: float = 0.95) -> RadiusMean:
        """The mean of radii, with 0 for images that are not right (ACR), and mean -+ z s / sqrt(n) around it."""
        check_level(level)
        counted = torch.where(self.correct, self.radius, 0.0)
        mean, n = float(counted.mean()), len(counted)
        half = float(scipy.special.ndtri(0.5 + level / 2)) * float(counted.std()) / math.sqrt(n) if n > 1 else math.inf
        return RadiusMean(mean, max(0.0, mean - half), mean + half)


def envelope(sets: Sequence[CertifiedSet], eps: float, level: float = 0.95) -> Proportion:
    """The largest certified accuracy at `eps` over several classifiers, such as those of several noise levels.

    One classifier for each radius, chosen by its result on these images: no single classifier reaches all of the curve.
    The interval contains the largest true share with probability `level`: each classifier has an interval that fails
    with its part of 1 - `level`, and the ends are the largest of their ends.
    """
    if not sets:
        raise ArgumentError("An envelope needs at least one test set, got none.")
    check_level(level)
    shares = [one.accuracy(eps, level) for one in sets]
    best = max(shares, key=lambda share: share.value)
    each = [clopper_pearson(share.count, share.total, 1 - (1 - level) / len(sets)) for share in shares]
    return Proportion(best.count, best.total, max(one.low for one in each), max(one.high for one in each))


def read_published_log(path: Path, name: str | None = None) -> CertifiedSet:
    """A log in the format of Cohen et al. 2019: tab-separated idx, label, predict, radius, correct and time.

    `predict` is -1 where the classifier abstains. A line that contradicts itself is refused. Without a name the set is
    called as its file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read as a log of radii ({error}).") from error
    if not lines or lines[0].split("\t") != _COLUMNS:
        raise RecordError(f"{path} does not begin with the columns {', '.join(_COLUMNS)}, separated by tabs.")
    rows = [_row(path, number, line) for number, line in enumerate(lines[1:], 2)]
    if not rows:
        raise RecordError(f"{path} has no line after its columns.")
    correct, radii = zip(*rows, strict=True)
    return CertifiedSet(name or path.stem, torch.tensor(correct), torch.tensor(radii, dtype=torch.float64))


def _row(path: Path, number: int, line: str) -> tuple[bool, float]:
    try:
        _, label, predicted, radius, correct, _ = line.split("\t")
        right, length = int(label) == int(predicted), float(radius)
        if not math.isfinite(length) or length < 0 or int(correct) != right:
            raise ValueError("it contradicts itself")
    except ValueError as error:
        raise RecordError(f"Line {number} of {path} is no entry of such a log ({error}): {line!r}.") from error
    return right, length
