"""What the page of a detector of anomalies shows, as plain data."""

from dataclasses import dataclass
from typing import final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.certify import Proportion
from lipkit.errors import ArgumentError, RecordError
from lipkit.sdf.one_class import Health

# The file of the result in the folder of a run.
ANOMALY = "anomaly.json"


@final
@dataclass(frozen=True)
class CertifiedAuroc:
    """Lower bounds of the AUROC on the test rows after moves of length `radius`, by who can move."""

    radius: float
    both: float
    anomalies: float
    normals: float


@final
@dataclass(frozen=True)
class Alarms:
    """Decisions on the test rows that no move of length `radius` changes: normal rows let pass, anomalies flagged."""

    radius: float
    passed: Proportion
    flagged: Proportion


@final
@dataclass(frozen=True)
class ScoreBars:
    """The histogram of the scores of one kind of rows; its edges are those of the page."""

    name: str
    counts: tuple[int, ...]


@final
@dataclass(frozen=True)
class StrangeRow:
    """A row with a low score: its place, its label, its score, and how far it stays on its side of the threshold."""

    row: int
    label: int | None
    learned: bool
    score: float
    radius: float


@final
@dataclass(frozen=True)
class Labelled:
    """What only labels can say: certified AUROC and decisions on rows that the training did not see."""

    normals: int
    anomalies: int
    curve: tuple[CertifiedAuroc, ...]
    table: tuple[CertifiedAuroc, ...]
    alarms: tuple[Alarms, ...]


@final
@dataclass(frozen=True)
class AnomalyContents:
    """The result of `lipkit anomaly`. JSON both ways, exactly.

    `learned` rows were given to the training, `held` of them only to the threshold. `constant` is that of the scores in
    l2, in units of the data, rounded up.
    """

    data: str
    command: str
    settings: tuple[tuple[str, str], ...]
    software: str
    rows: int
    columns: int
    learned: int
    held: int
    constant: float
    kind: str
    threshold: float
    contamination: float
    eps: float
    below: int
    labelled: Labelled | None
    edges: tuple[float, ...]
    bars: tuple[ScoreBars, ...]
    health: tuple[Health, ...]
    strangest: tuple[StrangeRow, ...]

    def __post_init__(self) -> None:
        if any(len(one.counts) + 1 != len(self.edges) for one in self.bars):
            raise ArgumentError("Every histogram of scores has a count between two edges.")
        if not self.strangest:
            raise ArgumentError("A detector has rows that it was asked about.")

    def lines(self) -> list[str]:
        """The result in words."""
        first = f"{self.below} of {self.rows} rows score below the threshold {self.threshold:.6g}"
        found = [f"constant {self.constant:.6g} ({self.kind}); {first}"]
        if self.labelled is None:
            return found
        for at, alarms in zip(self.labelled.table, self.labelled.alarms, strict=True):
            found.append(
                f"moved by {at.radius:g}: AUROC at least {at.both:.4f} (both), {at.anomalies:.4f} (anomalies), "
                f"{at.normals:.4f} (normal rows); {alarms.passed.count} of {alarms.passed.total} normal rows pass, "
                f"{alarms.flagged.count} of {alarms.flagged.total} anomalies are flagged"
            )
        return found

    def to_json(self) -> bytes:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, AnomalyContents)) + b"\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "AnomalyContents":
        """The contents that `to_json` wrote; anything else raises a `RecordError` that names `where`."""
        data = from_sealed_json(content.removesuffix(b"\n"), where, "run its command again")
        try:
            return from_plain(data, cls)  # pyright: ignore[reportArgumentType]
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "it")
            raise RecordError(f"{where} is no result of a detector ({said}); run its command again.") from error
