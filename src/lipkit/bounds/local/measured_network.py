"""A network in float64, with what interval methods need to know of its operators, each found once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._runtime import seconds_left
from lipkit.errors import OutOfTimeError, UnsupportedError
from lipkit.linops import Compose, LinearOperator, Scaled, StatedRounding, Sum, Sweep, depth, product
from lipkit.linops.queries.absolute import dominating
from lipkit.linops.queries.row_norms import row_norms
from lipkit.norms import AbsoluteSums, Auto
from lipkit.rounding.float64 import gamma
from lipkit.rounding.slacks import ROUNDINGS_32
from lipkit.trace import Network

# Up to this many entries a product of operators is written out, so that no cancellation between its parts is lost.
_WRITTEN_OUT = 2**22
# Covers a handful of float64 operations on numbers >= 0.
_INFLATION = 1 + ROUNDINGS_32


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """One operator A in float64, and bounds of it."""

    op: LinearOperator

    @cached_property
    def roundings(self) -> int:
        """The most rounded operations behind one entry of A x or A* y."""
        return depth(self.op)

    @cached_property
    def stages(self) -> LinearOperator:
        """|A| as evaluated, part by part: what rounding errors are relative to."""
        return dominating(self.op)

    @cached_property
    def tight(self) -> LinearOperator:
        """|A|, or as near above it as is affordable."""
        return dominating(self.op, _WRITTEN_OUT) if seconds_left() > 0 else self.stages

    @cached_property
    def norm(self) -> float:
        """||A||_2 or more, deterministic."""
        return deterministic_norm(self.op)

    @cached_property
    def rows(self) -> Float64[Tensor, "..."]:
        """Euclidean lengths of the rows, or more."""
        return row_norms(self.op, 2.0)


@final
@dataclass(frozen=True, eq=False)
class Affine:
    """sum_j A_j y_j + shift, where the shift is known up to `error` entry by entry."""

    blocks: Mapping[int, Measured]
    shift: Float64[Tensor, "..."]
    error: Float64[Tensor, "..."]

    def slack(self, more: int = 0) -> float:
        """gamma for evaluating it: the roundings of its operators, of adding them up with the shift, and `more`."""
        return gamma(max((block.roundings for block in self.blocks.values()), default=0) + len(self.blocks) + more + 8)


@final
@dataclass(frozen=True, eq=False)
class MeasuredNetwork:
    """A network in float64 without gradients, its operators measured as far as anybody asks.

    `fused[k]` is z_k with linear regions substituted, which loses no cancellation between their parts; the values in
    `inside`, those of the regions themselves, occur in no fused row.
    """

    network: Network
    fused: Mapping[int, Affine]
    inside: frozenset[int]
    device: torch.device


_measured: ContextVar[dict[int, tuple[Network, MeasuredNetwork]] | None] = ContextVar("measured", default=None)


@contextmanager
def measuring_once() -> Iterator[None]:
    """Within this block a network is measured once, however many methods read it; its weights must stay as they are."""
    token = _measured.set({})
    try:
        yield
    finally:
        _measured.reset(token)


def measure_network(network: Network) -> MeasuredNetwork:
    """The network as interval methods read it. Cost: bookkeeping; biases are applied once."""
    known = _measured.get()
    if known is None:
        return _measure(network)
    # With the network itself: an address that is free again may become another's.
    if id(network) not in known:
        known[id(network)] = network, _measure(network)
    return known[id(network)][1]


def _measure(network: Network) -> MeasuredNetwork:
    wide = network.detach().to(torch.float64)
    device = next((t.device for t in wide.tensors()), torch.device("cpu"))
    users: dict[int, int] = {}
    for _, j in wide.blocks:
        users[j] = users.get(j, 0) + 1
    fused: dict[int, Affine] = {}
    inside: set[int] = set()
    for k, row in wide.rows().items():
        zero = torch.zeros(wide.shape_into(k), dtype=torch.float64, device=device)
        shift = wide.biases[k].expand(zero.shape) if k in wide.biases else zero
        own = Affine({j: Measured(op) for j, op in row.items()}, shift, zero)
        fused[k] = _substitute(own, fused, inside)
        node = wide.nodes[k - 1] if k < wide.sink else None
        joins = len(row) > 1 and users.get(k, 0) > 1
        if node is not None and node.is_identity and not joins:
            inside.add(k)
    return MeasuredNetwork(wide, fused, frozenset(inside), device)


def _substitute(row: Affine, fused: Mapping[int, Affine], inside: set[int]) -> Affine:
    if not inside & row.blocks.keys():
        return row
    blocks: dict[int, LinearOperator] = {}
    shift, error = row.shift, row.slack() * row.shift.abs()
    for j, outer in row.blocks.items():
        if j not in inside:
            blocks[j] = blocks[j] + outer.op if j in blocks else outer.op
            continue
        shift = shift + outer.op.apply(fused[j].shift)
        error = error + outer.stages.apply(row.slack() * 2 * fused[j].shift.abs() + fused[j].error) * _INFLATION
        for i, inner in fused[j].blocks.items():
            op = product(outer.op, inner.op)
            blocks[i] = blocks[i] + op if i in blocks else op
    return Affine({j: Measured(op) for j, op in sorted(blocks.items())}, shift, error)


def deterministic_norm(op: LinearOperator) -> float:
    """An upper bound of the spectral norm in which no random number takes part.

    The choice of `Auto(failure=0)` where it has one; otherwise products are bounded by products, sums by sums, and
    what is left by (||D||_1 ||D||_inf)^(1/2) with D >= |A|, and all of it where the time is over.
    Cost: that of `Auto`.
    """
    try:
        return float(Auto(failure=0.0)(op).value)
    except (OutOfTimeError, UnsupportedError):
        found = float(AbsoluteSums()(op).value)
    if seconds_left() <= 0:
        return found
    match op:
        case Compose(outer, inner):
            return min(found, deterministic_norm(outer) * deterministic_norm(inner) * _INFLATION)
        case Sum(left, right):
            return min(found, (deterministic_norm(left) + deterministic_norm(right)) * _INFLATION)
        case Scaled(factor, inner):
            return min(found, float(factor.abs()) * deterministic_norm(inner) * _INFLATION)
        case StatedRounding(inner):
            return min(found, deterministic_norm(inner))
        case Sweep(edges, source, sink):
            norms = {source: 1.0}
            for k, j, edge in edges:
                norms[k] = (norms.get(k, 0.0) + deterministic_norm(edge) * norms[j]) * _INFLATION
            return min(found, norms[sink])
        case _:
            return found
