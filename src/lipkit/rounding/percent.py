"""Shares in percent: the one rule by which all of lipkit prints them."""

from fractions import Fraction

from lipkit.kind import Kind


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
