"""What stored results depend on: the model, the constant, the attack, as text that finds them again."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds.certificates.fingerprint import network_prints, row_hashes, sha256_of
from lipkit.certify.attacks import Attack
from lipkit.certify.evaluate.object_identity import module_told, told
from lipkit.regions import Ball, Box
from lipkit.trace import Network


def model_settings(model: nn.Module) -> dict[str, Any]:
    """A model as it is found again: tensors, attributes and code of all its parts, and how it prints."""
    found = module_told(model)
    return {
        "model": found["tensors"],
        "attributes": found["attributes"],
        "code": found["code"],
        "structure": str(model),
    }


def network_hash(network: Network) -> str:
    """A hash of what is evaluated: every operation and all its numbers, wherever a model took them from."""
    parts = (*row_hashes(network), *(one.sha256 for one in network_prints(network, ())))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def bound_settings(bound: Bound | Callable[[Tensor], Bound]) -> object:
    """A constant as it is found again: everything a radius depends on; of a function its code and what it holds."""
    if not isinstance(bound, Bound):
        return told(bound)
    match bound.region:
        case Ball(center, size, p):
            region = ["ball", sha256_of(center), size, str(p)]
        case Box(low, high):
            region = ["box", sha256_of(low), sha256_of(high)]
        case _:
            region = [str(bound.region)]
    return {
        "log_value": [x.hex() for x in bound.log_value.detach().flatten().tolist()],
        "kind": bound.kind.value,
        "metric": str(bound.metric),
        "of": str(bound.of),
        "region": region,
        "failure": bound.failure,
    }


def search_settings(eps: Sequence[float], norm: float, attack: Attack | None) -> dict[str, Any]:
    """The radii and the attack with all its fields: a name does not tell its box, nor the steps of its schedule."""
    own = {} if attack is None else {field.name: told(getattr(attack, field.name)) for field in fields(attack)}
    return {
        "eps": list(eps),
        "norm": norm if math.isfinite(norm) else "inf",
        "attack": None if attack is None else {**own, "whole": told(attack)},
    }
