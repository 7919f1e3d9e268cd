"""Operations that have no rows in a network, and the error that lists them."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from lipkit.errors import CaptureError
from lipkit.trace.network import Origin


class Verdict(enum.Enum):
    """Why an operation has no rows; the value is how it is said."""

    UNKNOWN = "no rule"
    REFUSED = "refused"
    RANDOM = "random"
    BRANCH = "control flow"
    BATCH = "batch statistics"


@final
@dataclass(frozen=True)
class Gap:
    """One operation that cannot be lowered."""

    origin: Origin
    verdict: Verdict
    reason: str
    remedy: str


def refusal_of(gaps: Sequence[Gap]) -> CaptureError:
    """One error that lists all gaps; equal ones at one place are said once."""
    rows = list(
        dict.fromkeys(
            (
                g.origin.op,
                g.origin.module or "(model)",
                g.origin.line or "?",
                f"{g.verdict.value}: {g.reason}",
                g.remedy,
            )
            for g in gaps
        )
    )
    head = ("operation", "module", "line", "verdict", "remedy")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    count = f"{len(rows)} operation{'s' if len(rows) > 1 else ''}"
    return CaptureError("\n".join([f"{count} of this model cannot be turned into a network:", *lines]))
