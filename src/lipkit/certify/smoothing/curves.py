"""Evaluations beside each other: logs of published runs, the best of several noise levels, the spread of a mean."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import scipy

from lipkit.certify.confidence_intervals import ConfidenceInterval, check_level, clopper_pearson
from lipkit.certify.evaluate.accuracy import check_radii
from lipkit.certify.evaluate.evaluation import Evaluation
from lipkit.certify.evaluate.proportion import Proportion
from lipkit.certify.evaluate.records import SampleResult
from lipkit.errors import ArgumentError, RecordError

_COLUMNS = ["idx", "label", "predict", "radius", "correct", "time"]


def read_published_log(
    path: str | Path, eps: Sequence[float], *, alpha: float = 1e-3, level: float = 0.95
) -> Evaluation:
    """The log of a smoothed classifier in the format of Cohen et al. 2019, as an evaluation at the radii `eps` in l2.

    The format: tab-separated idx, label, predict, radius, correct and time, with `predict` -1 where the classifier
    abstains. A line that contradicts itself is refused. A radius counts where it is above `eps`, as everywhere in
    lipkit, because it is that of an open ball.

    Args:
        alpha: The probability of failure that the authors state for each image.
        level: The confidence of the intervals of shares.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read as a log of radii ({error}).") from error
    if not lines or lines[0].split("\t") != _COLUMNS:
        raise RecordError(f"{path} does not begin with the columns {', '.join(_COLUMNS)}, separated by tabs.")
    rows = [_parse(path, number, line, check_level(alpha)) for number, line in enumerate(lines[1:], 2)]
    if not rows:
        raise RecordError(f"{path} has no line after its columns.")
    return Evaluation.of(rows, check_radii(eps), 2.0, level, 0.0)


def _parse(path: Path, number: int, line: str, alpha: float) -> SampleResult:
    try:
        index, label, predicted, radius, correct, _ = line.split("\t")
        right, length = int(label) == int(predicted), float(radius)
        if not math.isfinite(length) or length < 0 or int(label) < 0 or int(correct) != right:
            raise ValueError("it contradicts itself")
    except ValueError as error:
        raise RecordError(f"Line {number} of {path} is no entry of such a log ({error}): {line!r}.") from error
    return SampleResult(int(index), int(label), int(predicted), length if right else 0.0, failure=alpha)


def envelope(evaluations: Sequence[Evaluation]) -> tuple[Proportion, ...]:
    """The largest certified accuracy at each radius over several classifiers, such as those of several noise levels.

    One classifier for each radius, chosen by its result on these images: no single classifier reaches all of the curve.
    An interval contains the largest true share with the level of the first evaluation: each classifier has an interval
    that fails with its part of the rest, and the ends are the largest of their ends.
    """
    if len({(one.eps, one.p) for one in evaluations}) != 1:
        raise ArgumentError(
            f"An envelope is over one evaluation or more at the same radii in the same norm, got "
            f"{[(one.eps, one.p) for one in evaluations]}."
        )
    level = 1 - (1 - evaluations[0].level) / len(evaluations)
    found: list[Proportion] = []
    for shares in zip(*(one.overall.certified for one in evaluations), strict=True):
        best = max(shares, key=lambda share: share.value)
        each = [clopper_pearson(share.count, share.total, level) for share in shares]
        found.append(Proportion(best.count, best.total, max(one.low for one in each), max(one.high for one in each)))
    return tuple(found)


def mean_radius_interval(evaluation: Evaluation) -> ConfidenceInterval:
    """mean -+ z s / sqrt(n) around the average certified radius (ACR), at the level of the evaluation.

    Guarantee: none; the level is reached as the number n of images grows. Wrong and undecided images count 0.
    """
    radii = [sample.radius for sample in evaluation.samples]
    if len(radii) < 2 or not all(map(math.isfinite, radii)):
        return ConfidenceInterval(0.0, math.inf)
    half = float(scipy.special.ndtri(0.5 + evaluation.level / 2)) * statistics.stdev(radii) / math.sqrt(len(radii))
    return ConfidenceInterval(max(0.0, evaluation.overall.mean_radius - half), evaluation.overall.mean_radius + half)
