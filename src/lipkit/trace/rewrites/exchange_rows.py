"""Seeing that two values of a network are the same, and exchanging rows of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.linops import LinearOperator, Reshape, product
from lipkit.trace.network import Network
from lipkit.trace.nodes import Node


@final
class Numbering:
    """Numbers for the values of a network: equal numbers mean equal entries in equal order, whatever the shape."""

    def __init__(self, network: Network) -> None:
        self._known: dict[object, int] = {}
        self._inputs: dict[int, int] = {}
        self._values: dict[int, int] = {0: self._number("input")}
        for k, row in network.rows().items():
            bias = _key(network.biases[k]) if k in network.biases else None
            self._inputs[k] = self._sum(row, bias)
            if k < network.sink:
                node = network.nodes[k - 1]
                kept = node.is_identity
                self._values[k] = self._inputs[k] if kept else self._number((_key(node), self._inputs[k]))

    def value(self, k: int) -> int:
        """The number of y_k."""
        return self._values[k]

    def input_of(self, k: int) -> int:
        """The number of z_k, what row k hands to its node."""
        return self._inputs[k]

    def _sum(self, row: Mapping[int, LinearOperator], bias: object) -> int:
        if bias is None and len(row) == 1:
            ((j, op),) = row.items()
            if isinstance(op, Reshape):
                return self._values[j]
        terms = sorted((self._values[j], str(_key(op))) for j, op in row.items())
        return self._number((tuple(terms), str(bias)))

    def _number(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))


def _key(value: object) -> object:
    """A key that equal operators or nodes share: type and fields; numbers by value, weights by identity."""
    if isinstance(value, Tensor):
        if value.numel() == 1 or not value.is_floating_point():
            # As bytes: numpy has no bfloat16. A copy, because single numbers may have a stride of 0.
            flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
            content = flat.view(torch.uint8).numpy().tobytes()
            return ("tensor", tuple(value.shape), str(value.dtype), hashlib.blake2b(content).hexdigest())
        return ("weight", id(value))
    if isinstance(value, tuple):
        return tuple(_key(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(_key(getattr(value, f.name)) for f in fields(value)))
    return value if isinstance(value, int | float | str | None) else ("object", id(value))


@final
class Rewriting:
    """A network whose rows can be exchanged; `result` drops what is not used any more."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._nodes: dict[int, Node] = dict(enumerate(network.nodes, start=1))
        self._rows = {k: dict(row) for k, row in network.rows().items()}
        self._biases = dict(network.biases)
        # The value that row k had at first, as an operator of a value that there is now.
        self._moved: dict[int, tuple[int, LinearOperator]] = {}
        self._changed = False

    def replace(self, k: int, node: Node, row: Mapping[int, LinearOperator], bias: Tensor | None = None) -> None:
        """Row k becomes node(sum of op(value) + bias), the values being those of the network as it was at first."""
        self._nodes[k] = node
        self._rows[k] = {}
        for j, op in row.items():
            to, moved = self._moved.get(j, (j, None))
            used = op if moved is None else product(op, moved)
            self._rows[k][to] = self._rows[k][to] + used if to in self._rows[k] else used
        self._biases.pop(k, None)
        if bias is not None:
            self._biases[k] = bias
        self._changed = True

    def redirect(self, k: int, to: int, op: LinearOperator) -> None:
        """Let every row that uses value k use op(value `to`) instead; `to` is k or an earlier value."""
        assert k not in self._moved, "a value is redirected once"
        self._moved[k] = (to, op)
        for row in self._rows.values():
            if k in row:
                used = product(row.pop(k), op)
                row[to] = row[to] + used if to in row else used
        self._changed = True

    def result(self) -> Network:
        """The network as it is now."""
        if not self._changed:
            return self._network
        network = self._network
        needed = {network.sink}
        for k in range(network.sink, 0, -1):
            if k in needed:
                needed |= self._rows[k].keys()
        kept = [k for k in range(1, network.sink) if k in needed]
        new = {0: 0, **{k: i for i, k in enumerate([*kept, network.sink], start=1)}}
        return Network(
            network.source,
            tuple(self._nodes[k] for k in kept),
            {(new[k], new[j]): op for k in [*kept, network.sink] for j, op in sorted(self._rows[k].items())},
            {new[k]: bias for k, bias in self._biases.items() if k in new},
            tuple(network.origin(k) for k in [*kept, network.sink]) if network.origins else (),
            network.target,
        )
