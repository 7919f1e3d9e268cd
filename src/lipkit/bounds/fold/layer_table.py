"""A table of what each layer of a network contributes to its bound, and what fusing its operations saved."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import DAG, Fold, Term, fold_row
from lipkit.bounds.fold.operator_words import describe, name_origin
from lipkit.linops import LinearOperator, Permute, Reshape
from lipkit.rounding.float64 import log_product
from lipkit.trace import Network

# What stands in the place of a column for the nonlinearity of a row, and for a row measured as one operator.
NONLINEARITY, WHOLE_ROW = -1, -2
# Below this part of what the layers contribute in absolute value, a sum of logarithms has cancelled: shares of it would
# be large numbers of both signs that mean nothing.
_CANCELLED = 0.05


@final
@dataclass(frozen=True)
class LayerRow:
    """One block or one nonlinearity of a network, as a bound sees it.

    `row` is the row of the network, `column` the value the block acts on; -1 stands for the row's nonlinearity, and -2
    for all blocks of the row measured as one. `log_norm` is log of its norm or constant, of the given `kind`, found by
    `method`. `elasticity` is d log L / d log norm: by how many percent the bound falls if this norm falls by one.
    `share` is elasticity * log_norm / log L: the part of log L that stands in this line; the shares of a chain add up
    to one. It is None where log L is near 0 by cancellation. `saved` is the bound of the block operation by
    operation over that of the fused block, None where nothing was fused.
    """

    row: int
    column: int
    origin: str
    operator: str
    log_norm: float
    kind: Kind
    method: str
    elasticity: float
    share: float | None
    saved: float | None = None

    @property
    def norm(self) -> float:
        """The norm itself, to nearest; inf where float64 ends."""
        return math.exp(self.log_norm) if self.log_norm < 709 else math.inf


def layer_table(network: Network, method: DAG | None = None, savings: bool = True) -> list[LayerRow]:
    """The blocks and nonlinearities of the network in the order of the fold of `method`, `DAG()` by default.

    Nonlinearities that are 1-Lipschitz are left out. `network` is an unfused one, as `capture` makes it.
    Guarantee: norms have their kinds; shares are to nearest and at kinks of the fold those of one branch.
    Cost: the fold, and with `savings` one more norm for each operation.
    """
    method = DAG() if method is None else method
    network = network.detach()
    fold = method.fold(network)
    with torch.enable_grad():
        leaves, log_value = _attach_leaves(fold, method)
    variables = [leaf.log for leaf in leaves]
    # A network that is constant has no layer to blame.
    gradients = (
        torch.autograd.grad(log_value, variables, allow_unused=True, materialize_grads=True)
        if log_value.requires_grad
        else [torch.zeros_like(one) for one in variables]
    )
    # At a norm of 0 the derivative of a logarithm is no number, and nothing is contributed.
    elasticities = [float(g) if bool(torch.isfinite(g)) else 0.0 for g in gradients]
    logs = [float(leaf.log.detach()) for leaf in leaves]
    amounts = [e * log if e else 0.0 for e, log in zip(elasticities, logs, strict=True)]
    total = float(log_value.detach())
    meaningful = math.isfinite(total) and abs(total) > _CANCELLED * math.fsum(map(abs, amounts))
    inside = _Inside.of(network, fold.network)
    saved = inside.savings(fold, method) if savings else {}
    return [
        LayerRow(
            row=leaf.row,
            column=leaf.column,
            origin=inside.origin((leaf.row, leaf.column)),
            operator=leaf.said,
            log_norm=log,
            kind=leaf.bound.kind if leaf.bound is not None else Kind.UPPER,
            method=leaf.bound.how if leaf.bound is not None else "its steepest slope",
            elasticity=elasticity,
            share=amount / total if meaningful else None,
            saved=saved.get((leaf.row, leaf.column)),
        )
        for leaf, log, elasticity, amount in zip(leaves, logs, elasticities, amounts, strict=True)
        # A row that was measured as one in vain says nothing.
        if elasticity or leaf.column != WHOLE_ROW
    ]


@final
@dataclass(frozen=True, eq=False)
class _Leaf:
    """One norm of the fold as a variable."""

    log: Tensor
    row: int
    column: int
    said: str
    bound: Bound | None


def _attach_leaves(fold: Fold, method: DAG) -> tuple[list[_Leaf], Tensor]:
    """The same fold over norms that are leaves of a graph: these, and log L."""
    leaves: list[_Leaf] = []

    def leaf(log: Tensor, row: int, column: int, said: str, bound: Bound | None) -> Tensor:
        fresh = log.detach().cpu().clone().requires_grad_()
        leaves.append(_Leaf(fresh, row, column, said, bound))
        return fresh

    network, p = fold.network, method.metric.p_out
    extra = iter(fold.extra)
    into: dict[int, Tensor] = {}
    out = {0: torch.zeros((), dtype=torch.float64)}
    for k, row in network.rows().items():

        def joint(_: LinearOperator, k: int = k) -> Bound:
            known = next(extra)
            return replace(known, log_value=leaf(known.log_value, k, WHOLE_ROW, "all blocks of the row", known))

        terms: list[Term] = []
        for j, op in row.items():
            norm = fold.norms[k, j]
            terms.append(Term(op, replace(norm, log_value=leaf(norm.log_value, k, j, describe(op), norm)), out[j]))
        whole = method.metric.p_in == p or 0 not in row
        into[k] = fold_row(terms, p, joint if whole else None).log_constant
        if k < network.sink:
            node = network.nodes[k - 1]
            constant = node.log_constant(p).detach().cpu()
            if float(constant) != 0:
                constant = leaf(constant, k, NONLINEARITY, str(node), None)
            out[k] = log_product(into[k], constant, 1.0)
    return leaves, into[network.sink]


@final
@dataclass(frozen=True, eq=False)
class _Inside:
    """Which rows of the unfused network went into each block of the fused one."""

    network: Network
    old: dict[int, int]
    rows: dict[tuple[int, int], list[int]]

    @classmethod
    def of(cls, network: Network, fused: Network) -> "_Inside":
        """Fusing keeps the nodes themselves, so they tell which rows are left."""
        index = {id(node): k for k, node in enumerate(network.nodes, start=1)}
        old = {0: 0, **{k: index[id(node)] for k, node in enumerate(fused.nodes, start=1)}, fused.sink: network.sink}
        kept = set(old.values())
        found: dict[tuple[int, int], list[int]] = {}
        for j in range(fused.sink):
            below = _reachable_rows(network, old[j], kept)
            for k, _ in (at for at in fused.blocks if at[1] == j):
                found[k, j] = sorted(below & _reachable_rows(network, old[k], kept, back=True))
        return cls(network, old, found)

    def origin(self, at: tuple[int, int]) -> str:
        """The modules whose operations were fused, or the operation itself where there are none."""
        origins = [self.network.origin(row) for row in self.rows.get(at, ())]
        said = dict.fromkeys(filter(None, map(name_origin, origins)))
        return ", ".join(said) or name_origin(self.network.origin(self.old[at[0]])) or "a node"

    def savings(self, fold: Fold, method: DAG) -> dict[tuple[int, int], float]:
        """For each fused block: the sum over paths of products of its operations' norms, over its own norm."""
        places = sorted(self.network.blocks)
        ops = [self.network.blocks[at] for at in places]
        norms = Meter(method.metric, method.norm).many(ops, [j == 0 for _, j in places])
        logs = {at: float(norm.log_value) for at, norm in zip(places, norms, strict=True)}
        found: dict[tuple[int, int], float] = {}
        for (k, j), norm in fold.norms.items():
            own = float(norm.log_value)
            total, moving = {self.old[j]: 0.0}, 0
            for row in (*self.rows[k, j], self.old[k]):
                via = {col: op for col, op in self.network.row(row).items() if col in total}
                terms = torch.tensor([total[col] + logs[row, col] for col in via], dtype=torch.float64)
                total[row] = float(torch.logsumexp(terms, 0))
                moving += sum(not isinstance(op, Reshape | Permute) for op in via.values())
            if moving > 1 and own > -math.inf:
                found[k, j] = math.exp(total[self.old[k]] - own)
        return found


def _reachable_rows(network: Network, start: int, kept: set[int], back: bool = False) -> set[int]:
    """The fused rows that `start` leads to (or, `back`, comes from) through fused rows only."""
    found: set[int] = set()
    for k, j in sorted(network.blocks, reverse=back):
        near, far = (k, j) if back else (j, k)
        if (near == start or near in found) and far not in kept:
            found.add(far)
    return found
