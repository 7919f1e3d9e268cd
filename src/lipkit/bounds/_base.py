"""The base of whole-network methods: they turn a network and a region into a bound, which knows what it is of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final
from weakref import WeakKeyDictionary

import torch

from lipkit._runtime import recording
from lipkit.bound import Bound, Fingerprint
from lipkit.bounds.certificates.identity import network_hash
from lipkit.bounds.fold.balanced_products import balance_products
from lipkit.bounds.local.whole_space import know_whole_space
from lipkit.errors import ArgumentError, NeedsRegion
from lipkit.linops import Shape
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise


class Method(ABC):
    """A way to bound the Lipschitz constant of a network; hyper-parameters are fields, the call is the algorithm.

    The kind belongs to the result. A method that only knows constants on the whole space may be called with any
    region: what holds everywhere holds there, and the bound says the smaller region.
    """

    @final
    def __call__(self, network: Network, region: Region = Everywhere()) -> Bound:
        """The constant of `network` on `region`."""
        with recording() as draws:
            found = self._advised(know_products(network), region)
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


def know_products(network: Network) -> Network:
    """The same function, in which products know the ranges of their factors on the whole space and are balanced."""
    # Functions of single entries that have a constant need no range and have no factors.
    if all(isinstance(node, Pointwise) for node in network.nodes) and not network.without_constant(2.0):
        return network
    return balance_products(know_whole_space(network))


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


@final
@dataclass(frozen=True)
class NetworkPrint(Fingerprint):
    """A hash of what a network computes, by its numbers in float64, so that a copy in float64 has the same."""

    shape: Shape
    sha256: str

    @classmethod
    def of(cls, network: Network) -> "NetworkPrint":
        """The fingerprint of a network. Cost: a copy in float64, and a hash of it."""
        return cls(network.source, network_hash(network.detach().to(torch.float64)))

    @property
    def source(self) -> Shape:
        return self.shape

    @property
    def network(self) -> str:
        return self.sha256


# Fingerprints of networks that are in use, with the state of their weights then.
_known: WeakKeyDictionary[Network, tuple[tuple[int, ...], NetworkPrint]] = WeakKeyDictionary()


@final
class Snapshot(Fingerprint):
    """The fingerprint of a network as it is now, hashed only when it is asked for, which a step of training never does.

    If weights were changed in place since, it refuses, because its hash would be that of others. A change behind
    torch's back, through `.data`, it does not see; so `lipschitz` and `pairwise` hash at once, outside of training.
    Cost: a look at the version of each tensor.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._versions = network, _versions(network)

    @property
    def source(self) -> Shape:
        return self._network.source

    @property
    def network(self) -> str:
        return self.compute_hash().network

    def compute_hash(self) -> NetworkPrint:
        """The hash now, as a fingerprint that no longer holds the network."""
        versions = _versions(self._network)
        if versions != self._versions:
            raise ArgumentError("The weights were changed after this bound was computed; compute it once more.")
        known = _known.get(self._network)
        if known is None or known[0] != versions:
            known = _known[self._network] = versions, NetworkPrint.of(self._network)
        return known[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and (self._network, self._versions) == (other._network, other._versions)

    def __hash__(self) -> int:
        return hash(self._versions)


def _versions(network: Network) -> tuple[int, ...]:
    """How often each tensor was changed in place, and where it lies; one of inference mode has no count."""
    return tuple(n for t in network.tensors() for n in (t.data_ptr(), 0 if t.is_inference() else t._version))
