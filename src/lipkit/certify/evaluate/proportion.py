"""A share of samples: exact counts, the share in percent, and a confidence interval."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from lipkit.bound import Kind
from lipkit.certify.confidence_intervals import clopper_pearson


@final
@dataclass(frozen=True)
class Proportion:
    """`count` of `total` samples, and an interval that contains the true share with the stated confidence."""

    count: int
    total: int
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int, level: float) -> "Proportion":
        """With the exact interval of Clopper and Pearson."""
        low, high = clopper_pearson(count, total, level) if total else (0.0, 1.0)
        return cls(count, total, low, high)

    @property
    def value(self) -> float:
        """The share itself; NaN of nothing."""
        return self.count / self.total if self.total else math.nan

    def percent(self, kind: Kind = Kind.LOWER) -> str:
        """The share alone, such as "64.2 %": rounded down as what is proven, or up with `Kind.UPPER`."""
        return percent(Fraction(self.count, self.total), kind) if self.total else "no sample"

    def counted(self, kind: Kind = Kind.LOWER) -> str:
        """The counts and the share, such as "255 of 397, 64.2 %"; the counts are exact whatever the side."""
        return f"{self.count} of {self.total}, {self.percent(kind)}" if self.total else "no sample"

    @property
    def interval(self) -> str:
        """The confidence interval rounded outwards, such as "59.2 to 69.0 %"."""
        return f"{percent(self.low, Kind.LOWER).removesuffix(' %')} to {percent(self.high, Kind.UPPER)}"

    def __str__(self) -> str:
        return f"{self.counted()} ({self.interval})"


def percent(share: Fraction | float, kind: Kind) -> str:
    """A share in percent with one digit after the point, rounded to the side of its kind: "64.2 %".

    A proven share (LOWER) is rounded down and an upper bound up, so what is printed is as true as the number itself:
    "100.0 %" of a LOWER share means all, "0.0 %" of an UPPER one none. An ESTIMATE is rounded to nearest.
    Guarantee: exact; a float is taken as the fraction that it is.
    """
    tenths = Fraction(share) * 1000
    whole = {1.0: -(-tenths // 1), -1.0: tenths // 1}.get(kind.side, round(tenths))
    sign = "-" if whole < 0 else ""
    return f"{sign}{abs(whole) // 10}.{abs(whole) % 10} %"
