"""What a detector refuses: settings that mean nothing, rows that are not finite, and rows without a score."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Float64

from lipkit.errors import ArgumentError, NonFiniteError

_NUMBERS = (
    "margin",
    "weight",
    "steps",
    "distance",
    "separation",
    "nearest",
    "neighbors",
    "contamination",
    "calibration",
    "eps",
)


def check_settings(asked: Mapping[str, Any]) -> None:
    """Refuse settings that mean nothing; estimators of scikit-learn keep what they are given until they are trained."""
    for name in _NUMBERS:
        value = asked[name]
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ArgumentError(f"{name} is a finite number, got {value!r}.")
    contamination, calibration, nearest, eps = (
        asked[name] for name in ("contamination", "calibration", "nearest", "eps")
    )
    if not isinstance(asked["widths"], Iterable):
        raise ArgumentError(f"widths are even numbers of neurons, one for each hidden layer, got {asked['widths']!r}.")
    for name in ("standardise", "robust", "logarithmic"):
        if not isinstance(asked[name], bool | np.bool_):
            raise ArgumentError(f"{name} is True or False, got {asked[name]!r}.")
        if asked[name] and not (asked["standardise"] and (asked["network"] is None or name == "standardise")):
            raise ArgumentError(f"{name}=True is a way to standardise, and columns are left as they are; drop one.")
    if not 0 < contamination <= 0.5:
        raise ArgumentError(f"contamination lies in (0, 0.5], got {contamination}.")
    if not 0 <= calibration < 1:
        raise ArgumentError(f"calibration is a share of the rows in [0, 1), got {calibration}.")
    if not 0 <= nearest <= 1:
        raise ArgumentError(f"nearest is the share of the exact distance, in [0, 1], got {nearest}.")
    if not 0 <= asked["neighbors"] <= 1:
        raise ArgumentError(
            f"neighbors is the share of the rows that is averaged, in [0, 1], got {asked['neighbors']}."
        )
    if asked["neighbors"] and asked["flats"]:
        raise ArgumentError(
            f"neighbors={asked['neighbors']:g} averages distances to rows, and flats={asked['flats']} takes their "
            "place; set one of them to 0."
        )
    for name in ("flats", "flat_dim"):
        value = asked[name]
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ArgumentError(f"{name} is a whole number >= 0, got {value!r}.")
    if eps < 0:
        raise ArgumentError(f"eps is a finite length >= 0, got {eps}.")
    if eps and not calibration:
        raise ArgumentError(
            f"eps={eps:g} keeps a promise that only held-out rows give; set calibration, such as 0.3, too."
        )


def finite_rows(rows: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """The rows, if all entries are finite."""
    wrong = np.argwhere(~np.isfinite(rows))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise NonFiniteError(
            f"X is NaN or infinite in row {row}, column {column} ({len(wrong)} entries in all); remove or fill them."
        )
    return rows


def finite_scores(scores: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The scores, if all are finite; NaN is below no threshold, so its row would pass for normal."""
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        raise NonFiniteError(f"Row {wrong[0]} of X has no finite score ({len(wrong)} in all); is it too far out?")
    return scores
