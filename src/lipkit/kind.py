"""What a number proves, and what numbers made from others prove."""

import enum


class Kind(enum.Enum):
    """What a number proves about the true one; the value is how it is said."""

    EXACT = "exact"
    UPPER = "upper bound"
    LOWER = "lower bound"
    ESTIMATE = "estimate"

    @property
    def certifies(self) -> bool:
        """Whether the true number is never above this one (EXACT is rounded up, so it qualifies)."""
        return self in (Kind.EXACT, Kind.UPPER)

    @property
    def side(self) -> float:
        """Which way such a number is rounded: +1 up, -1 down, 0 to nearest."""
        return 1.0 if self.certifies else -1.0 if self is Kind.LOWER else 0.0

    @property
    def restricted(self) -> "Kind":
        """What a number about all inputs says about some of them: upper bounds survive, nothing else does."""
        return Kind.UPPER if self.certifies else Kind.ESTIMATE


def kind_of_product(a: Kind, b: Kind) -> Kind:
    """Products and sums only bound the constant of a composition or a sum from above, whatever their factors are."""
    return Kind.UPPER if a.certifies and b.certifies else Kind.ESTIMATE


def kind_of_max(a: Kind, b: Kind) -> Kind:
    """The norm of a block-diagonal map *is* the larger one, so every side that both parts know survives."""
    kinds = {a, b}
    if kinds == {Kind.EXACT}:
        return Kind.EXACT
    if kinds <= {Kind.EXACT, Kind.UPPER}:
        return Kind.UPPER
    return Kind.LOWER if kinds <= {Kind.EXACT, Kind.LOWER} else Kind.ESTIMATE


def kind_of_best(a: Kind, b: Kind) -> Kind:
    """The smaller, entry by entry, of two numbers that are both EXACT or UPPER."""
    return Kind.EXACT if a is b is Kind.EXACT else Kind.UPPER
