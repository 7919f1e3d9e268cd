"""The constant that certifies, found once and kept beside the results that rest on it."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds.certificates.fingerprint import NetworkPrint
from lipkit.bounds.certificates.identity import network_hash
from lipkit.bounds.lipschitz import network_of
from lipkit.cli.training import checkpoint
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError, RecordError
from lipkit.regions import Everywhere


def load_or_find_bound(
    path: Path, model: nn.Module, example: torch.Tensor, source: str, find: Callable[[], Bound], team: Team
) -> Bound:
    """The constant that `find` gives for a model, from the file if there is one; one of another network is refused.

    A randomised constant, or one that depends on the time there was, is so drawn once, by the first process, and
    results that were begun with it continue. Its kind is as it was found. Cost: one capture, and `find` the first time.
    """
    with torch.no_grad():
        prints = [source, network_hash(network_of(model, example))]
    if team.leads:
        stored = checkpoint.load(path) if path.exists() else {"model": None}
        if stored.get("model") not in (None, prints):
            raise RecordError(
                f"{path} is the constant of another network: what the model computes has changed, for example in code "
                "that it imports. Remove that file and the folder evaluation beside it, or give another --out."
            )
        if stored["model"] is None:
            with torch.no_grad():
                found = find()
            if not isinstance(found.region, Everywhere):
                raise ArgumentError(f"The constant of a recipe holds everywhere, got one on a {found.region}.")
            checkpoint.save(path, {
                "model": prints, "log_value": found.log_value, "kind": found.kind.name, "of": found.of.name,
                "metric": list(found.metric), "failure": found.failure, "method": found.how,
                "of network": None if found.subject is None else found.subject.network,
                "of inputs": None if found.subject is None else list(found.subject.source),
            })  # fmt: skip
    state = team.broadcast(checkpoint.load(path) if team.leads else None)
    try:
        of = state["of network"]
        subject = None if of is None else NetworkPrint(tuple(state["of inputs"]), of)
        return Bound(
            state["log_value"].to(torch.float64), Kind[state["kind"]], state["method"], Metric(*state["metric"]),
            of=Scope[state["of"]], failure=state["failure"], subject=subject,
        )  # fmt: skip
    except KeyError as missing:
        raise RecordError(f"{path} lacks {missing}; remove it, and it is found again.") from missing
