"""The constant that certifies, found once and kept beside the results that rest on it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from lipkit._runtime import recording
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds._base import NetworkPrint
from lipkit.bounds.certificates.identity import network_hash
from lipkit.bounds.lipschitz import network_of
from lipkit.cli.training import checkpoint
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError, RecordError
from lipkit.regions import Everywhere


@final
@dataclass(frozen=True, eq=False)
class StoredBound:
    """A constant as its file keeps it: hashes of the code and the network it is of, and the draws that found it."""

    bound: Bound
    source: str
    network: str
    draws: tuple[int, ...]

    @classmethod
    def find(cls, find: Callable[[], Bound], source: str, network: str) -> "StoredBound":
        """The constant that `find` gives, with everything it draws. Cost: `find`."""
        with torch.no_grad(), recording() as draws:
            found = find()
        if not isinstance(found.region, Everywhere):
            raise ArgumentError(f"The constant of a recipe holds everywhere, got one on a {found.region}.")
        return cls(found, source, network, tuple(draws))

    @classmethod
    def read(cls, path: Path) -> "StoredBound":
        """The constant of a file; a `RecordError` if it is damaged or another."""
        return cls._from_state(checkpoint.load(path), path)

    @classmethod
    def _from_state(cls, state: dict[str, Any], path: Path) -> "StoredBound":
        try:
            of = state["of network"]
            bound = Bound(
                state["log_value"].to(torch.float64), Kind[state["kind"]], state["method"], Metric(*state["metric"]),
                of=Scope[state["of"]], failure=state["failure"],
                subject=None if of is None else NetworkPrint(tuple(state["of inputs"]), of),
            )  # fmt: skip
            source, network = state["model"]
            return cls(bound, source, network, tuple(int(one, 16) for one in state["draws"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{path} is no stored constant ({error}); remove it, and it is found again.") from error

    def to_state(self) -> dict[str, Any]:
        """As a file keeps it."""
        one = self.bound
        return {
            "model": [self.source, self.network], "log_value": one.log_value, "kind": one.kind.name,
            "of": one.of.name, "metric": list(one.metric), "failure": one.failure, "method": one.how,
            "draws": list(map(hex, self.draws)),
            "of network": None if one.subject is None else one.subject.network,
            "of inputs": None if one.subject is None else list(one.subject.source),
        }  # fmt: skip

    @classmethod
    def from_leader(cls, path: Path, team: Team) -> "StoredBound":
        """The constant that the leading process reads from its file, in all processes."""
        return cls._from_state(team.broadcast(checkpoint.load(path) if team.leads else None), path)


def load_or_find_bound(
    path: Path, model: nn.Module, example: torch.Tensor, source: str, find: Callable[[], Bound], team: Team
) -> Bound:
    """The constant that `find` gives for a model, from the file if there is one; one of another network is refused.

    A randomised constant, or one that depends on the time there was, is so drawn once, by the first process, and
    results that were begun with it continue. Its kind is as it was found. Cost: one capture, and `find` the first time.
    """
    with torch.no_grad():
        network = network_hash(network_of(model, example))
    if team.leads and not path.exists():
        checkpoint.save(path, StoredBound.find(find, source, network).to_state())
    stored = StoredBound.from_leader(path, team)
    if (stored.source, stored.network) != (source, network):
        raise RecordError(
            f"{path} is the constant of another network: what the model computes has changed, for example in code "
            "that it imports. Remove that file and the folder evaluation beside it, or give another --out."
        )
    return stored.bound
