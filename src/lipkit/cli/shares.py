"""An evaluation as plain data."""

import math

from lipkit.certify import Evaluation


def plain(found: Evaluation) -> dict[str, object]:
    """An evaluation as JSON: shares with their intervals."""
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
