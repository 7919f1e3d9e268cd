"""Results as plain data, and in files."""

import json
import math
from pathlib import Path

from lipkit._files import write_whole
from lipkit.certify import Evaluation
from lipkit.report.contents import Contents


def plain(found: Evaluation | Contents) -> dict[str, object]:
    """An evaluation, or that of a report, as JSON: shares with their intervals."""
    shares = found.overall
    attacked = shares.attacked or [None] * len(found.eps)
    return {
        "norm": "inf" if found.p == math.inf else found.p,
        "level": found.level,
        "failure": found.failure,
        "clean": vars(shares.clean),
        "mean_radius": "inf" if shares.mean_radius == math.inf else shares.mean_radius,
        "radii": [
            {"eps": e, "certified": vars(sure), "attacked": None if left is None else vars(left)}
            for e, sure, left in zip(found.eps, shares.certified, attacked, strict=True)
        ],
    }


def write_json(path: Path | None, content: object) -> None:
    """Plain data to the file of `--json`, whole or not at all; nothing where none is asked for."""
    if path is not None:
        write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
