"""What formulas about signed distances give as printed, and what is true: numbers of docs/errata.md."""

import math
from collections.abc import Callable


def union() -> list[str]:
    half = 0.6
    corner = math.sqrt(1 - half**2)
    middle = math.hypot(half, 0) - 1
    far = math.hypot(half, 3) - 1
    return [f"{middle:.1f}", f"{corner:.1f} away", f"{far:.4f}", f"{3 - corner:.1f} away"]


def several_classes() -> list[str]:
    ties = [(a + b) / 2 for a, b in ((0, 4), (0, 6))]
    assert ties[1] not in (1, 2)
    return [f"x = {tie:.0f} has distance {tie:.0f}" for tie in ties]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The minimum as the signed distance of a union": union,
    "The boundary of several classes": several_classes,
}
