"""The counts of a stored report, counted again from its radii: no count is believed because it is written down."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from lipkit.certify import Accuracies, Evaluation, Proportion, SampleResult
from lipkit.errors import ArgumentError, RecordError
from lipkit.report.results.contents import Contents, CurvePoint, Histogram, Outcomes

# Points of the curve, and bars of the histogram at most.
_POINTS, _BARS = 65, 24


def curve(evaluation: Evaluation) -> tuple[CurvePoint, ...]:
    """The share of samples certified beyond r, for r from 0 to the largest finite radius or eps, in even steps.

    The radii of the evaluation are among them, so the curve passes through its table. Intervals are those of
    `Evaluation`: each at the level by itself.
    """
    last = reach(evaluation.samples, evaluation.eps)
    grid = sorted({last * i / (_POINTS - 1) for i in range(_POINTS - 1)} | {last, *evaluation.eps})
    total = len(evaluation.samples)
    return tuple(
        CurvePoint(r, Proportion.of(sum(s.radius > r for s in evaluation.samples), total, evaluation.level))
        for r in grid
    )


def histogram(evaluation: Evaluation) -> Histogram:
    """Bars of one width from 0 to the largest finite radius of a sample; as many as the square root of their number."""
    right = [s.radius for s in evaluation.samples if s.predicted == s.label]
    finite = [r for r in right if 0 < r < math.inf]
    last = max(finite, default=1.0)
    bars = max(1, min(_BARS, math.isqrt(len(finite))))
    counts = [0] * bars
    for r in finite:
        counts[min(bars - 1, max(0, math.ceil(r / last * bars) - 1))] += 1
    return Histogram(
        edges=tuple(last * i / bars for i in range(bars + 1)),
        counts=tuple(counts),
        wrong=len(evaluation.samples) - len(right),
        uncertain=sum(r == 0 for r in right),
        endless=sum(r == math.inf for r in right),
    )


def reach(samples: Sequence[SampleResult], eps: Sequence[float]) -> float:
    """The end of an axis of radii: the largest finite one, or 1 if none is above 0."""
    finite = [s.radius for s in samples if s.radius < math.inf]
    return max([*finite, *eps], default=0.0) or 1.0


def read_report(path: Path) -> Contents:
    """The report of a file; a `RecordError` if its checksum or one of its counts does not hold, which is named.

    Cost: a few passes over the samples.
    """
    try:
        contents = Contents.from_json(path.read_text(encoding="utf-8"))
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ArgumentError(f"{path} cannot be read ({why}); name the folder of a run.") from error
    wrong = next(find_miscounts(contents), None)
    if wrong is not None:
        again = contents.about.command or "its command"
        raise RecordError(f"{path} {wrong}: it was changed; make it again: {again}")
    return contents


def find_miscounts(contents: Contents) -> Iterator[str]:
    """A sentence for every count of a report that its radii do not give: "says ..., and its radii give ..."."""
    impossible = _find_impossible(contents.outcomes, len(contents.eps))
    if impossible:
        yield impossible
        return
    found = recount(contents)
    yield from _compare("in all", contents.overall, found.overall, contents.eps)
    labels, rows = sorted(found.classes), contents.by_class
    names = [contents.classes[k] if k < len(contents.classes) else str(k) for k in labels]
    if [row.name for row in rows] != names:
        yield f"has rows for the classes {[row.name for row in rows]}, and its labels give {names}"
        return
    for k, row in zip(labels, rows, strict=True):
        yield from _compare(f"of class {row.name}", row.shares, found.classes[k], contents.eps)
    if contents.unproven != found.unproven:
        yield f"says that {contents.unproven} attacks are not proven, and its samples give {found.unproven}"
    for stored, counted in zip(contents.curve, curve(found), strict=False):
        if stored != counted:
            yield _differ(f"certified beyond {stored.radius:g} on the curve", stored.share, counted.share)
            return
    if contents.curve != curve(found):
        yield f"has a curve of {len(contents.curve)} points, and its radii give {len(curve(found))}"
    bars, counted_bars = contents.histogram, histogram(found)
    if bars != counted_bars:
        yield f"has a histogram with the counts {bars.counts}, and its radii give {counted_bars.counts}"


def recount(contents: Contents) -> Evaluation:
    """The evaluation of a report, counted from its samples alone."""
    one = contents.outcomes
    broken = one.broken or ((),) * len(one.indices)
    rows = zip(one.indices, one.labels, one.predicted, one.radii, broken, one.unproven, strict=True)
    samples = [SampleResult(i, label, found, r, hit, 0.0, seen) for i, label, found, r, hit, seen in rows]
    return Evaluation.of(samples, contents.eps, contents.p, contents.level, contents.failure)


def _find_impossible(found: Outcomes, radii: int) -> str:
    """A sentence for samples that no evaluation gives, "" if there are none."""
    columns = (found.labels, found.predicted, found.radii, found.broken, found.unproven)
    if not found.indices or any(len(one) != len(found.indices) for one in columns):
        return f"has columns of {[len(found.indices), *map(len, columns)]} samples, which must be one number above 0"
    if len(set(found.indices)) != len(found.indices):
        twice = next(i for i in found.indices if found.indices.count(i) > 1)
        return f"has sample {twice} more than once"
    for i, label, decided, radius, broken in zip(found.indices, *columns[:4], strict=True):
        # NaN is no radius either.
        if not radius >= 0 or (radius > 0 and label != decided):
            return f"says that sample {i} of class {label}, taken for class {decided}, is certified up to {radius}"
        if len(broken) not in (0, radii):
            return f"has {len(broken)} attacks on sample {i}, and there are {radii} radii"
    return ""


def _compare(whose: str, stored: Accuracies, counted: Accuracies, eps: tuple[float, ...]) -> Iterator[str]:
    if stored.clean != counted.clean:
        yield _differ(f"classified correctly {whose}", stored.clean, counted.clean)
    if len(stored.certified) != len(eps):
        yield f"has certified shares for {len(stored.certified)} radii {whose}, and there are {len(eps)}"
        return
    for e, one, other in zip(eps, stored.certified, counted.certified, strict=True):
        if one != other:
            yield _differ(f"certified up to {e:g} {whose}", one, other)
    if (stored.attacked is None) != (counted.attacked is None) or len(stored.attacked or eps) != len(eps):
        yield f"has other attacked shares {whose} than its samples"
        return
    for e, one, other in zip(eps, stored.attacked or (), counted.attacked or (), strict=False):
        if one != other:
            yield _differ(f"left by the attack at {e:g} {whose}", one, other)
    if stored.mean_radius != counted.mean_radius:
        yield f"says that the mean radius {whose} is {stored.mean_radius!r}, and its radii give {counted.mean_radius!r}"


def _differ(what: str, stored: Proportion, counted: Proportion) -> str:
    counts = [f"{one.count} of {one.total}" for one in (stored, counted)]
    if counts[0] == counts[1]:
        # The interval alone is another.
        counts = [f"{one.count} of {one.total} with the interval [{one.low}, {one.high}]" for one in (stored, counted)]
    return f"says that {counts[0]} are {what}, and its radii give {counts[1]}"
