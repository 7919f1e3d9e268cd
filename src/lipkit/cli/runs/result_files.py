"""Results as plain data, and in files."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from lipkit._files import write_whole
from lipkit.bound import Kind
from lipkit.certify import Accuracies, Evaluation
from lipkit.cli.console import terminal
from lipkit.report.results.contents import Contents


def plain(found: Evaluation | Contents, warnings: Sequence[str]) -> dict[str, object]:
    """An evaluation, or that of a report, as JSON: shares with their intervals, of all and of each class there is.

    `warnings` are the sentences of `certify.find_warnings`.
    """
    return {
        "norm": "inf" if found.p == math.inf else found.p,
        "level": found.level,
        "failure": found.failure,
        "unproven": found.unproven,
        "warnings": list(warnings),
        **_plain(found.overall, found.eps),
        "classes": [{"class": k, **_plain(shares, found.eps)} for k, shares in _of_classes(found).items()],
    }


def _plain(shares: Accuracies, eps: Sequence[float]) -> dict[str, object]:
    attacked = shares.attacked or [None] * len(eps)
    return {
        "clean": vars(shares.clean),
        "mean_radius": "inf" if shares.mean_radius == math.inf else shares.mean_radius,
        "radii": [
            {"eps": e, "certified": vars(sure), "attacked": None if left is None else vars(left)}
            for e, sure, left in zip(eps, shares.certified, attacked, strict=True)
        ],
    }


def _of_classes(found: Evaluation | Contents) -> dict[int, Accuracies]:
    if isinstance(found, Evaluation):
        return found.classes
    # A report names its classes; their indices are the labels that occur, in order.
    return dict(zip(sorted(set(found.outcomes.labels)), (row.shares for row in found.by_class), strict=True))


def by_class(found: Evaluation, names: Sequence[str]) -> str:
    """A line for each class: how many of its samples are right, and at each radius certified and left by the attack."""
    attacked = "certified" if found.overall.attacked is None else "from certified to left by the attack,"
    lines = [f"class, samples: clean; {attacked} at each radius"]
    for k, shares in found.classes.items():
        sure = [f"{share.count} ({share.percent()})" for share in shares.certified]
        if shares.attacked is not None:
            sides = zip(shares.certified, shares.attacked, strict=True)
            sure = [
                f"{low.count} to {high.count} ({low.percent().removesuffix(' %')} to {high.percent(Kind.UPPER)})"
                for low, high in sides
            ]
        clean = f"{shares.clean.count} ({shares.clean.percent()})"
        lines.append(f"{names[k]}, {shares.clean.total}: {clean}; {', '.join(sure)}")
    return "\n".join(lines)


def print_warnings(warnings: Sequence[str]) -> None:
    """Each on a line of its own, on the terminal."""
    for sentence in warnings:
        terminal().print(f"Warning: {sentence}", soft_wrap=True, markup=False, highlight=False)


def write_json(path: Path | None, content: object) -> None:
    """Plain data to the file of `--json`, whole or not at all; nothing where none is asked for."""
    if path is not None:
        write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
