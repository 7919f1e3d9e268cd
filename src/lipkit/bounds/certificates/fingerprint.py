"""What a bound is of: a fingerprint of the network it was computed from, as the weights were then."""

from dataclasses import dataclass
from typing import final
from weakref import WeakKeyDictionary

import torch

from lipkit.bound import Fingerprint
from lipkit.bounds.certificates.identity import network_hash
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.trace import Network


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
