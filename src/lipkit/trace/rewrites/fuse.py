"""Fusion: linear regions become single blocks, so that their norms are taken as a whole."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor

from lipkit.linops import LinearOperator, product
from lipkit.trace.network import Network


class Cut(ABC):
    """Where a linear region is cut although it could be fused: tightness is given for fewer and smaller blocks."""

    @abstractmethod
    def keeps(self, sources: int, consumers: int) -> bool:
        """Whether an identity node that joins `sources` values and feeds `consumers` rows stays."""


@final
@dataclass(frozen=True)
class Nowhere(Cut):
    """Fuse everything: the tightest, and about K^2/2 blocks through K skip connections."""

    def keeps(self, sources: int, consumers: int) -> bool:
        return False

    def __str__(self) -> str:
        return "fused throughout"


@final
@dataclass(frozen=True)
class Junctions(Cut):
    """Cut where several values are added or joined and the result is used more than once: as many blocks as edges."""

    def keeps(self, sources: int, consumers: int) -> bool:
        return sources > 1 and consumers > 1

    def __str__(self) -> str:
        return "cut at junctions"


@final
@dataclass(frozen=True)
class EveryOp(Cut):
    """Fuse nothing: every operation is its own block, as in the classical product bound."""

    def keeps(self, sources: int, consumers: int) -> bool:
        return True

    def __str__(self) -> str:
        return "cut at every operation"


def fuse(network: Network, cut: Cut) -> Network:
    """The same function with its identity nodes substituted into the rows that use them, except those `cut` keeps.

    A_lj becomes A_lj + A_lk A_kj and b_l becomes b_l + A_lk b_k for every eliminated k.
    Cost: none but bookkeeping; biases are applied once.
    """
    rows = network.rows()
    users: dict[int, set[int]] = {}
    for k, j in network.blocks:
        users.setdefault(j, set()).add(k)
    biases = dict(network.biases)
    gone: set[int] = set()
    for k in range(1, network.sink):
        node = network.nodes[k - 1]
        if not node.is_identity or cut.keeps(len(rows[k]), len(users.get(k, ()))):
            continue
        gone.add(k)
        for row in users.pop(k, set()):
            outer = rows[row].pop(k)
            for j, inner in rows[k].items():
                users[j].add(row)
                _add(rows[row], j, product(outer, inner))
            if k in biases:
                _add_bias(biases, row, outer, biases[k])
        for j in rows.pop(k):
            users[j].discard(k)
        biases.pop(k, None)
    return _renumber(network, rows, biases, gone)


def _add(row: dict[int, LinearOperator], j: int, op: LinearOperator) -> None:
    row[j] = row[j] + op if j in row else op


def _add_bias(biases: dict[int, Tensor], k: int, op: LinearOperator, bias: Tensor) -> None:
    # Float64: a fused bias must not be less accurate than the model's own, and it is never large.
    image = op.to(bias.double().dtype).apply(bias.double())
    biases[k] = biases[k] + image if k in biases else image


def _renumber(
    network: Network, rows: dict[int, dict[int, LinearOperator]], biases: dict[int, Tensor], gone: set[int]
) -> Network:
    kept = [k for k in range(1, network.sink) if k not in gone]
    new = {0: 0, **{k: i for i, k in enumerate([*kept, network.sink], start=1)}}
    return Network(
        network.source,
        tuple(network.nodes[k - 1] for k in kept),
        {(new[k], new[j]): op for k, row in rows.items() for j, op in sorted(row.items())},
        {new[k]: bias for k, bias in biases.items()},
        tuple(network.origin(k) for k in [*kept, network.sink]),
        network.target,
    )
