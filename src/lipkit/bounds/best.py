"""The smallest bound of several methods."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

from lipkit.bound import Bound, Scope
from lipkit.bounds._base import Method
from lipkit.bounds.fold.dag import failures
from lipkit.errors import ArgumentError
from lipkit.regions import Region
from lipkit.trace import Network


@final
@dataclass(frozen=True)
class Best(Method):
    """The smallest of the upper bounds of several methods, with all results in `parts`.

    Guarantee: EXACT or UPPER as the winner is. A randomised winner was chosen by looking, so failures add up then.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        if not self.methods:
            raise ArgumentError("Best needs at least one method, got none.")

    def __str__(self) -> str:
        return "best of " + ", ".join(map(str, self.methods))

    @property
    def reads_region(self) -> bool:
        """Whether all of the methods do."""
        return all(method.reads_region for method in self.methods)

    def _bound(self, network: Network, region: Region) -> Bound:
        return smallest([method(network, region) for method in self.methods])


def smallest(results: Sequence[Bound]) -> Bound:
    """The smallest upper bound, saying how it was found, with all of them in `parts`."""
    best = reduce(Bound.best, results)
    winner = min(results, key=lambda bound: float(bound.log_value.detach().sum()))
    # A random winner was chosen by looking at all of them; a deterministic one is true whatever the others drew.
    chosen = len(results) > 1 and (winner.failure > 0 or best.of is not Scope.WHOLE)
    failure = failures(results) if chosen else winner.failure
    return replace(best, method=winner.method, failure=failure, parts=tuple(results), draws=winner.draws)
