"""Everything a report shows, as plain data: what was measured, on what, and what could not be."""

from dataclasses import dataclass
from typing import final

import torch

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.certify import Accuracies, Proportion
from lipkit.errors import RecordError
from lipkit.report.html.pixels import Pixels
from lipkit.report.results.about import About, AttackUsed, DataUsed
from lipkit.report.results.privacy_claim import PrivacyClaim


@final
@dataclass(frozen=True)
class Constant:
    """The constant behind the radii: its largest and smallest entry as logarithms, and what it promises.

    It has `entries` values, one for `of`; of pairs only those of two different classes count.
    """

    log_value: float
    log_smallest: float
    entries: int
    of: str
    kind: Kind
    metric: Metric
    region: str
    method: str
    failure: float
    log_lower: float | None

    @classmethod
    def of_bound(cls, bound: Bound) -> "Constant":
        """The part of a bound that a page shows."""
        logs = bound.log_value.detach().cpu()
        if bound.of is Scope.PAIR and len(logs) > 1:
            logs = logs[~torch.eye(len(logs), dtype=torch.bool)]
        lower = None if bound.lower is None else float(bound.lower.log_value.detach().max())
        return cls(
            log_value=float(logs.max()),
            log_smallest=float(logs.min()),
            entries=logs.numel(),
            of=str(bound.of),
            kind=bound.kind,
            metric=Metric(*map(float, bound.metric)),
            region=str(bound.region),
            method=bound.how,
            failure=bound.failure,
            log_lower=lower,
        )


@final
@dataclass(frozen=True)
class Outcomes:
    """Sample by sample, in one order: place in the data set, label, decision, certified radius, what attacks broke."""

    indices: tuple[int, ...]
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    radii: tuple[float, ...]
    broken: tuple[tuple[bool, ...], ...]
    unproven: tuple[bool, ...]


@final
@dataclass(frozen=True)
class ClassRow:
    """The results of one class."""

    name: str
    shares: Accuracies


@final
@dataclass(frozen=True)
class CurvePoint:
    """The share of samples whose certified radius is above `radius`."""

    radius: float
    share: Proportion


@final
@dataclass(frozen=True)
class Histogram:
    """Certified radii of correctly classified samples: `counts[i]` lie in (edges[i], edges[i + 1]].

    Besides them, `wrong` samples are misclassified, `uncertain` ones right but without any radius, and `endless` ones
    certified whatever happens to their input.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    wrong: int
    uncertain: int
    endless: int


@final
@dataclass(frozen=True)
class Spectrum:
    """The singular values of one linear map, falling: `values` are all `total` of them, or some at even distances.

    EXACT means those of the map itself, to the rounding of float64; an ESTIMATE is of the same convolution with
    circular padding.
    """

    name: str
    operator: str
    values: tuple[float, ...]
    total: int
    kind: Kind


@final
@dataclass(frozen=True)
class Spectra:
    """The spectra that were computed, and a sentence for each layer that was left out."""

    shown: tuple[Spectrum, ...]
    left_out: tuple[str, ...]


@final
@dataclass(frozen=True)
class DepthRow:
    """Lengths of the loss' gradient with respect to the output of one module, over a batch: mean and quantiles."""

    name: str
    module: str
    mean: float
    low: float
    median: float
    high: float


@final
@dataclass(frozen=True)
class Entry:
    """One line of a training journal; None for what it does not know."""

    step: int
    loss: float | None
    constant: float | None


@final
@dataclass(frozen=True)
class Picture:
    """One test image with its certified radius, and the nearest image of another class that was found.

    `neighbour`, `became` and `distance` are None where the search found none.
    """

    index: int
    label: int
    radius: float
    image: Pixels
    neighbour: Pixels | None
    became: int | None
    distance: float | None


@final
@dataclass(frozen=True)
class Gallery:
    """The images of smallest and of largest radius among those classified correctly; entries lie in [low, high]."""

    hardest: tuple[Picture, ...]
    safest: tuple[Picture, ...]
    low: float
    high: float
    search: str


@final
@dataclass(frozen=True)
class Plane:
    """Decisions and certified radii on a grid of the plane, row by row from below, and some test points."""

    across: tuple[float, ...]
    up: tuple[float, ...]
    predicted: tuple[int, ...]
    radii: tuple[float, ...]
    points: tuple[tuple[float, float], ...]
    labels: tuple[int, ...]


@final
@dataclass(frozen=True)
class Failure:
    """A part of the report that could not be made, and why."""

    part: str
    reason: str


@final
@dataclass(frozen=True)
class Contents:
    """Everything a report shows; a part that is None could not be measured, and `failures` says why.

    `precision` is the type of the model's weights; `local` counts the radii that are proven near their samples instead
    of by the constant; `warnings` are sentences about results that look wrong.
    Only classifiers of points in the plane have a `plane`, only those of images a `gallery`, only trainings that were
    profiled a `profile`, and only private ones a `privacy`. JSON both ways, exactly: numbers are written with all their
    digits, images with all bits.
    """

    about: About
    data: DataUsed
    attack: AttackUsed | None
    precision: str
    warnings: tuple[str, ...]
    constant: Constant
    classes: tuple[str, ...]
    eps: tuple[float, ...]
    p: float
    level: float
    failure: float
    unproven: int
    local: int
    overall: Accuracies
    by_class: tuple[ClassRow, ...]
    outcomes: Outcomes
    curve: tuple[CurvePoint, ...]
    histogram: Histogram
    layers: tuple[LayerRow, ...] | None
    spectra: Spectra | None
    depth: tuple[DepthRow, ...] | None
    training: tuple[Entry, ...] | None
    gallery: Gallery | None
    no_gallery: str
    plane: Plane | None
    profile: StoredHistory | None
    privacy: PrivacyClaim | None
    failures: tuple[Failure, ...]

    def to_json(self) -> str:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, Contents)).decode() + "\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, text: str) -> "Contents":
        """The contents that `to_json` wrote; any other text raises a `RecordError`."""
        data = from_sealed_json(text.removesuffix("\n").encode(), "The report", "make it again")
        try:
            return from_plain(data, cls)
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "It")
            raise RecordError(f"This is no report of lipkit ({said}); make it again.") from error
