"""What a report of a smoothing run shows, as plain data: one log of votes, and what several methods prove from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.bound import Bound
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.certify import Accuracies, Evaluation
from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, RecordError
from lipkit.report.results.contents import CurvePoint
from lipkit.report.results.recount import curve

# The method that is of use with a Lipschitz constant of the base network.
LOW_VARIANCE = "low variance (LVM-RS)"


@final
@dataclass(frozen=True)
class MethodCurve:
    """What one method proves: shares at the radii of the table, the curve between them, and images it leaves undecided.

    `failure` bounds the probability that a single radius is wrong; None for results that were not certified here.
    """

    name: str
    shares: Accuracies
    curve: tuple[CurvePoint, ...]
    undecided: int
    failure: float | None

    @classmethod
    def of(cls, name: str, found: Evaluation, failure: float | None = None) -> "MethodCurve":
        """The curve of an evaluation."""
        undecided = sum(sample.predicted == rs.ABSTAIN for sample in found.samples)
        return cls(name, found.overall, curve(found), undecided, failure)


@final
@dataclass(frozen=True)
class SmoothingContents:
    """Everything a report of a smoothing run shows. JSON both ways, exactly."""

    noise: str
    precision: str
    device: str
    samples: int
    choosing: int
    seed: int
    alpha: float
    p: float
    level: float
    images: int
    eps: tuple[float, ...]
    methods: tuple[MethodCurve, ...]

    def to_json(self) -> str:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, SmoothingContents)).decode() + "\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, text: str) -> "SmoothingContents":
        """The contents that `to_json` wrote; any other text raises a `RecordError`."""
        data = from_sealed_json(text.removesuffix("\n").encode(), "The report", "make it again")
        try:
            return from_plain(data, cls)
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "It")
            raise RecordError(f"This is no report of a smoothing run ({said}); make it again.") from error


def customary_methods() -> dict[str, rs.Method]:
    """The methods that a report compares, ours first."""
    return {
        "intersection-union": rs.IntersectionUnion(),
        LOW_VARIANCE: rs.LowVariance(),
        "class partition (CPM)": rs.ClassPartition(),
        "Bonferroni": rs.Bonferroni(),
        "Cohen": rs.Cohen(),
    }


def gather_smoothing(
    log: str | Path,
    eps: Sequence[float],
    *,
    alpha: float = 1e-3,
    methods: Mapping[str, rs.Method] | None = None,
    bound: Bound | None = None,
) -> SmoothingContents:
    """What the log of `certify_data` proves by each method, `customary_methods()` if None.

    A `bound` of the base network is used by the first method, or by low variance if `methods` is None, as a curve of
    its own that comes first. Low variance is left out after the first place where the log has hard votes alone: it
    would be intersection-union again. Each curve is a certificate by itself; which one is used must not depend on the
    curves. Cost: the statistics of every method.
    """
    known = rs.Log.read(log)
    chosen = dict(customary_methods() if methods is None else methods)
    if not chosen:
        raise ArgumentError("A report of a smoothing run compares one method at least, got none.")
    first = next(iter(chosen)) if methods is not None or bound is None else LOW_VARIANCE
    if all(isinstance(one, rs.Hardmax) for one in known.maps):
        chosen = {name: one for name, one in chosen.items() if name == first or not isinstance(one, rs.LowVariance)}
    found: dict[str, rs.SmoothedEvaluation] = {}
    if bound is not None:
        found[f"{first}, with the constant"] = rs.recertify(log, eps, alpha=alpha, method=chosen[first], bound=bound)
    found |= {name: rs.recertify(log, eps, alpha=alpha, method=method) for name, method in chosen.items()}
    shown = next(iter(found.values())).evaluation
    return SmoothingContents(
        noise=str(known.noise), precision=str(known.settings["precision"]), device=str(known.settings["device"]),
        samples=int(known.settings["n"]), choosing=int(known.settings["n0"]), seed=int(known.settings["seed"]),
        alpha=alpha, p=shown.p, level=shown.level, images=len(shown.samples), eps=shown.eps,
        methods=tuple(MethodCurve.of(name, one.evaluation, one.radii.failure) for name, one in found.items()),
    )  # fmt: skip
