"""The report of a conversion: one row for each operation."""

import enum
from dataclasses import dataclass
from typing import final


class ConversionVerdict(enum.Enum):
    """The result of one operation."""

    KEPT = "kept"
    CHANGED = "changed"
    SKIPPED = "skipped"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class Row:
    """One operation: where it is, what it was, what it is now (or what to do, where it is refused)."""

    place: str
    was: str
    verdict: ConversionVerdict
    now: str


@final
@dataclass(frozen=True)
class ConversionReport:
    """Everything a conversion changed, kept, skipped and refused, in the order of the computation; prints as a table.

    `unbounded` names the skipped modules whose constant is above 1 or not known: with any, K is not promised.
    """

    K: float
    rows: tuple[Row, ...]
    unbounded: tuple[str, ...] = ()

    @property
    def promised(self) -> bool:
        """Whether the twin has the constant K by construction."""
        return not self.unbounded

    def of(self, verdict: ConversionVerdict) -> tuple[Row, ...]:
        """The rows with this verdict."""
        return tuple(row for row in self.rows if row.verdict is verdict)

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(verdict))} {verdict}" for verdict in ConversionVerdict)
        lines = [f"K = {self.K:g}: {counts}", *table(self.rows)]
        if not self.promised:
            names = ", ".join(self.unbounded)
            lines.append(f"K is not promised, because of {names}; bound the twin with lipkit.lipschitz(twin, example).")
        return "\n".join(lines)


def table(rows: tuple[Row, ...]) -> list[str]:
    """The rows as lines of text, in columns."""
    cells = [("place", "was", "", "now"), *((row.place, row.was, str(row.verdict), row.now) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(3)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
        for line in cells
    ]
