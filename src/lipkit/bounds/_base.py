"""The base of whole-network methods: frozen dataclasses that turn a network and a region into a bound."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import final

from lipkit._seeds import recording
from lipkit.bound import Bound
from lipkit.bounds.certificates.fingerprint import Snapshot
from lipkit.errors import ArgumentError, NeedsRegion
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network


class Method(ABC):
    """A way to bound the Lipschitz constant of a network; hyper-parameters are fields, the call is the algorithm.

    The kind belongs to the result. A method that only knows constants on the whole space may be called with any
    region: what holds everywhere holds there, and the bound says the smaller region.
    """

    @final
    def __call__(self, network: Network, region: Region = Everywhere()) -> Bound:
        """The constant of `network` on `region`."""
        with recording() as draws:
            found = self._advised(network, region)
        # The result of another method, the best of several, keeps the draws of that one alone.
        chosen = isinstance(found.method, Method) and found.method != self and found.draws is not None
        return replace(found, draws=found.draws if chosen else tuple(draws), subject=Snapshot(network))

    def _advised(self, network: Network, region: Region) -> Bound:
        """The algorithm, whose refusals say what to do about a region that was given."""
        try:
            return self._bound(network, region)
        except NeedsRegion as error:
            if region == Everywhere() or self.reads_region:
                raise
            raise NeedsRegion(
                error.problem,
                f"{type(self).__name__} does not make use of the {region} that was given: put Local around it, "
                f"Local({type(self).__name__}(...)), or use Auto().",
            ) from error

    @property
    def reads_region(self) -> bool:
        """Whether the method itself finds less on a smaller region; any other learns of it through `Local`."""
        return False

    @abstractmethod
    def _bound(self, network: Network, region: Region) -> Bound:
        """The algorithm."""


def require_method(method: object, *others: type) -> None:
    """Refuse what is no method (or one of `others`), a class of methods and a name among them."""
    if not isinstance(method, (Method, *others)):
        hint = f"give {method.__name__}()" if isinstance(method, type) else "give one of lipkit.bounds, e.g. LipLT()"
        raise ArgumentError(f"The method must be an object such as Auto(budget=10), got {method!r}; {hint}.")


class RegionMethod(Method):
    """A method that finds less on a smaller region by itself, so that `Local` need not be put around it."""

    @property
    @final
    def reads_region(self) -> bool:
        return True
