"""The fold over a network: the constant of every value, from the constants of the values before it, row by row."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric
from lipkit.bounds._base import Method
from lipkit.bounds.fold.block_norms import Meter
from lipkit.errors import ArgumentError
from lipkit.linops import BlockRow, LinearOperator, Reshape, product, support
from lipkit.norms import AbsoluteSums, Auto, InTime, Norm
from lipkit.regions import Region
from lipkit.rounding.float64 import log_product, log_sum, round_log
from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.trace import Network
from lipkit.trace.rewrites.fuse import Cut, EveryOp, Junctions, Nowhere, fuse


def tails(network: Network, norms: Mapping[tuple[int, int], Bound]) -> dict[int, Float64[Tensor, ""]]:
    """log M_j for every node j: a change of y_j by d, earlier values kept, moves the output by M_j d at most, in l2.

        M_j = fold over the rows k that read y_j of ||A_kj|| Lip(phi_k) M_k,   M = 1 at the output:
    the fold of the transposed network. `norms` are upper bounds of the norms of the blocks; the result is rounded up.
    A node that the output does not depend on has log M = -inf.
    """
    sink = network.sink
    after: dict[int, Tensor] = {sink: torch.zeros((), dtype=torch.float64)}
    found: dict[int, Tensor] = {}
    users: dict[int, list[int]] = {}
    for k, j in sorted(network.blocks):
        users.setdefault(j, []).append(k)
    for j in range(sink - 1, 0, -1):
        terms = [Term(network.blocks[k, j].T, norms[k, j], after[k]) for k in users.get(j, [])]
        found[j] = fold_row(terms, 2.0, None).log_constant
        constant = network.nodes[j - 1].log_constant(2.0)
        after[j] = log_product(found[j], constant.to(found[j].device), 1.0)
    return found


Log = Float64[Tensor, ""]


@final
@dataclass(frozen=True, eq=False)
class Term:
    """One block of a row: the operator, a bound of its norm, and log of the constant of the value it acts on.

    Constants are numbers, and are kept on the CPU wherever the operators live.

    `log_limit` is another bound of the constant of the whole term, where one is known.
    """

    op: LinearOperator
    norm: Bound
    log_constant: Log
    log_limit: Log | None = None

    @property
    def log_product(self) -> Log:
        """log of ||A_j|| L_j, rounded up, or the limit if that is smaller."""
        found = log_product(self.norm.log_value.cpu(), self.log_constant, 1.0)
        return found if self.log_limit is None else torch.minimum(found, self.log_limit)


@final
@dataclass(frozen=True, eq=False)
class Row:
    """log of the constant of a row, and the norms that were needed beyond those of its blocks."""

    log_constant: Log
    extra: tuple[Bound, ...] = ()


def fold_row(
    terms: Sequence[Term], p: float, joint: Callable[[LinearOperator], Bound] | None, apart: bool = True
) -> Row:
    """The smallest of the proven constants of sum_j A_j y_j, where y_j is L_j-Lipschitz, in l_p:

        groups   the p-sum over groups of sum_{j in group} ||A_j|| L_j, where blocks of different groups write to
                 different outputs (one group: the plain sum; all apart: the p-sum of concatenation);
        joined   ||[A_1 ... A_J]|| times the p-norm of (L_1, ..., L_J), asked of `joint` only where it can win.

    `joint` None leaves the second out; `apart` False spares the search for groups and takes one.
    Guarantee: an upper bound, rounded up, if the norms are.
    """
    if not terms:
        return Row(torch.full((), -math.inf, dtype=torch.float64))
    groups = disjoint(terms) if apart else [list(terms)]
    best = _p_sum([_p_sum([term.log_product for term in group], 1.0) for group in groups], p)
    # All apart, the row is block diagonal: its norm is the largest of the blocks', and the p-sum is never above.
    if joint is None or len(groups) == len(terms):
        return Row(best)
    sizes = _p_sum([term.log_constant for term in terms], p)
    # The least the second form can be; a norm for less than a hundredth of gain is not worth its time.
    if not bool(sizes.detach() + _least_norm(terms) < best.detach() - 0.01):
        return Row(best)
    whole = joint(BlockRow(tuple(_flat(term.op) for term in terms)))
    return Row(torch.minimum(best, log_product(whole.log_value.cpu(), sizes, 1.0)), (whole,))


def _least_norm(terms: Sequence[Term]) -> float:
    """A number that ||[A_1 ... A_J]|| is never below, as a logarithm: sum_j A_j A_j* is at least each term of it.

    A reshape R has R R* = 1, so it adds 1 to the square; that is every skip connection.
    """
    isometries = sum(isinstance(term.op, Reshape) for term in terms)
    known = [term.norm.lower or term.norm for term in terms if not isinstance(term.op, Reshape)]
    largest = max((float(bound.log_value.detach()) for bound in known), default=-math.inf)
    if largest > 300 or not isometries:
        return largest
    return 0.5 * math.log(math.exp(2 * largest) + isometries)


def _flat(op: LinearOperator) -> LinearOperator:
    return product(Reshape(op.out_shape, (op.out_size,)), op)


def disjoint(terms: Sequence[Term]) -> list[list[Term]]:
    """Terms that may write to a common output, together."""
    if len(terms) == 1:
        return [list(terms)]
    groups: list[tuple[Tensor, list[Term]]] = []
    for term in terms:
        mask, members = support(term.op).cpu(), [term]
        apart: list[tuple[Tensor, list[Term]]] = []
        for other, others in groups:
            if bool((mask & other).any()):
                mask, members = mask | other, [*others, *members]
            else:
                apart.append((other, others))
        groups = [*apart, (mask, members)]
    return [members for _, members in groups]


def _p_sum(logs: Sequence[Log], p: float) -> Log:
    """log of the p-norm of numbers given by their logarithms, rounded up."""
    if len(logs) == 1:
        return logs[0]
    if p == math.inf:
        return torch.stack(list(logs)).max()
    total = round_log(logs[0] * p, 1.0) if p != 1 else logs[0]
    for log in logs[1:]:
        total = log_sum(total, round_log(log * p, 1.0) if p != 1 else log, 1.0)
    return total if p == 1 else round_log(total / p, 1.0)


# Up to this many blocks a network is fused throughout; beyond, junctions stay cut.
_MANY = 96


@final
@dataclass(frozen=True, eq=False)
class Fold:
    """The fold of one network: its blocks' norms, and log of the constant of z_k and y_k with respect to the input.

    `into[k]` belongs to z_k for k = 1..K+1, `out[j]` to y_j for j = 0..K.
    """

    network: Network
    norms: dict[tuple[int, int], Bound]
    extra: tuple[Bound, ...]
    into: dict[int, Float64[Tensor, ""]]
    out: dict[int, Float64[Tensor, ""]]

    @property
    def log_value(self) -> Float64[Tensor, ""]:
        """log of the constant of the whole network."""
        return self.into[self.network.sink]


@final
@dataclass(frozen=True)
class DAG(Method):
    """Constants forward through any directed acyclic network, block by block:

        L_0 = 1,   L_k = Lip(phi_k) min{ p-sum over disjoint groups of sum_j ||A_kj|| L_j ; ||[A_k1 ... A_kJ]|| |L|_p }.

    Linear regions are fused first, according to `cut`; None fuses throughout while that leaves at most 96 blocks, and
    cuts at junctions beyond. Where values are joined, the unfused fold may be the smaller one, and is taken then.
    At a cut vertex the fold factorises by itself, so no articulation points are needed.

    Guarantee: UPPER; failures of randomised norms add up. Differentiable in the weights. Cost: one norm a block.
    References: Virmaux and Scaman 2018 for sequential nets; Luo et al. 2025 for DAGs with plain sums; the minimum over
    the three forms is ours.
    """

    norm: Norm = Auto()
    cut: Cut | None = None
    metric: Metric = L2

    def __str__(self) -> str:
        # `Auto` folds up to three times: the passes that are cut short by intent say so.
        norm = f", norms by {self.norm}" if isinstance(self.norm, AbsoluteSums | InTime) else ""
        return f"fold over the network, {self.cut or 'fused'}{norm}"

    def fold(self, network: Network) -> Fold:
        """The fold itself, for tables of what each block contributes."""
        return fold_network(self.fused(network), Meter(self.metric, self.norm), joined=True)

    def fused(self, network: Network) -> Network:
        """The network as this method sees it."""
        if self.cut is not None:
            return fuse(network, self.cut)
        whole = fuse(network, Nowhere())
        return whole if len(whole.blocks) <= _MANY else fuse(network, Junctions())

    def _bound(self, network: Network, region: Region) -> Bound:
        found = as_bound(self.fold(network), self, self.metric, region)
        # Only a concatenation lets the unfused fold win: elsewhere fused norms are never larger.
        if isinstance(self.cut, EveryOp) or not joins(network):
            return found
        plain = as_bound(fold_network(network, Meter(self.metric, self.norm), joined=True), self, self.metric, region)
        return found.best(plain)


@final
@dataclass(frozen=True)
class Product(Method):
    """The classical bound: every operation by itself, products along paths, sums over branches, p-sums of joined parts.

        L(f_D o ... o f_1) <= prod_d L(f_d)

    Guarantee: UPPER, usually very loose. Differentiable in the weights. Cost: one norm an operation.
    References: Szegedy et al. 2014; Virmaux and Scaman 2018 (AutoLip).
    """

    norm: Norm = Auto()
    metric: Metric = L2

    def __str__(self) -> str:
        return "product of the norms of all operations"

    def _bound(self, network: Network, region: Region) -> Bound:
        fold = fold_network(fuse(network, EveryOp()), Meter(self.metric, self.norm), joined=False)
        return as_bound(fold, self, self.metric, region)


def fold_network(network: Network, meter: Meter, joined: bool) -> Fold:
    """L_k for every k, in one pass; `joined` allows the form that measures a whole row at once."""
    network.require_constants(meter.p)
    places = sorted(network.blocks)
    found = meter.many([network.blocks[at] for at in places], [j == 0 for _, j in places])
    norms = dict(zip(places, found, strict=True))
    out = {0: torch.zeros((), dtype=torch.float64)}
    into: dict[int, Tensor] = {}
    extra: list[Bound] = []
    for k, row in network.rows().items():
        terms = [Term(op, norms[k, j], out[j]) for j, op in row.items()]
        # A row that mixes the input in another norm than the rest cannot be measured as one operator.
        whole = joined and (meter.metric.p_in == meter.p or 0 not in row)
        folded_row = fold_row(terms, meter.p, (lambda op: meter.many([op], [False])[0]) if whole else None)
        extra += folded_row.extra
        into[k] = folded_row.log_constant
        if k < network.sink:
            constant = network.nodes[k - 1].log_constant(meter.p).cpu()
            out[k] = log_product(into[k], constant, 1.0)
    return Fold(network, norms, tuple(extra), into, out)


def as_bound(fold: Fold, method: Method, metric: Metric, region: Region) -> Bound:
    """The bound a fold proves, with the norms of its blocks as parts."""
    parts = (*(fold.norms[at] for at in sorted(fold.norms)), *fold.extra)
    return Bound(fold.log_value, Kind.UPPER, method, metric, region, failure=failures(parts), parts=parts)


def failures(parts: Sequence[Bound]) -> float:
    """The probability that any of the parts fails, at most."""
    total = math.fsum(part.failure for part in parts) * (1 + ROUNDINGS_8192)
    if total >= 1:
        raise ArgumentError(
            f"The failure probabilities of {len(parts)} norms add up to {total:g}; ask for smaller ones."
        )
    return total


def joins(network: Network) -> bool:
    """Whether some row puts values side by side, through blocks that write to a part of it only."""
    return any(len(row) > 1 and any(op.in_size < op.out_size for op in row.values()) for row in network.rows().values())
