"""Attention that a model spells out: scores that are masked with -inf, and softmax(Q K') V by matrix products."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.linops import Index, LinearOperator, Permute, Reshape, product
from lipkit.trace.network import Network
from lipkit.trace.nodes import Attention, MatrixProduct, Softmax
from lipkit.trace.rewrites.entrywise_functions import Entries, factor_of
from lipkit.trace.rewrites.exchange_rows import Rewriting


def merge_masks(network: Network) -> Network:
    """The same function with scores of -inf as entries that a softmax does not see.

    masked_fill(-inf) is a bias of -inf, with which nothing can be computed. Where a softmax follows at once, its node
    knows the hidden entries instead, and their bias is 0. A row without any entry to see is left as it is.
    """
    entries, rewriting = Entries(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        if not isinstance(node, Softmax) or node.hidden is not None:
            continue
        found = _row_with_mask(entries, k)
        if found is not None and not bool(found.hidden.reshape(node.size).all(-1).any()):
            row = {j: product(found.move, op) for j, op in network.row(found.row).items()}
            rewriting.replace(k, Softmax(node.size, hidden=found.hidden.reshape(node.size)), row, found.bias)
    return rewriting.result()


@final
@dataclass(frozen=True, eq=False)
class _Masked:
    """Row `row` has a bias with -inf; `move` brings it to the softmax, and `bias` is the rest of it there."""

    row: int
    move: LinearOperator
    hidden: Tensor
    bias: Tensor


def _row_with_mask(entries: Entries, k: int) -> _Masked | None:
    """The first row with a bias behind row k, through reshapes and permutations; None if its bias is finite."""
    network, row = entries.network, k
    move: LinearOperator = Reshape(network.nodes[k - 1].shape, network.nodes[k - 1].shape)
    while row not in network.biases:
        if len(network.row(row)) != 1:
            return None
        ((row, op),) = network.row(row).items()
        if not isinstance(op, Reshape | Permute) or not entries.is_identity(row):
            return None
        move = product(move, op)
    bias = network.biases[row]
    infinite = bias == -math.inf
    if bias.requires_grad or not bool(infinite.any()):
        return None
    hidden = move.apply(infinite.to(torch.float64)) > 0
    return _Masked(row, move, hidden, move.to(bias.dtype).apply(bias.masked_fill(infinite, 0.0)))


def merge_attention(network: Network) -> Network:
    """The same function with softmax(scale Q K' + mask) V, spelled out, as one attention node.

    The node bounds the three factors together, and knows that its output is a mean of the values. The mask may be any
    constant; one that is learned leaves the products as they are.
    """
    entries, rewriting = Entries(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        outer = entries.factors(k)
        if not isinstance(node, MatrixProduct) or outer is None:
            continue
        found = _scores(entries, outer[0], node)
        if found is None:
            continue
        attention = Attention(
            node.groups, node.rows, node.inner, found.width, node.cols, found.scale, _full(found.mask, node)
        )
        rewriting.replace(k, attention, _join(network, attention, found.queries, found.keys, outer[1]))
    return rewriting.result()


@final
@dataclass(frozen=True, eq=False)
class _Scores:
    """softmax(scale Q K' + mask), with Q row `queries` and K' row `keys`."""

    queries: int
    keys: int
    width: int
    scale: float
    mask: Tensor | None


def _scores(entries: Entries, k: int, outer: MatrixProduct) -> _Scores | None:
    network = entries.network
    weights = _through_reshapes(entries, k)
    node = network.nodes[weights - 1] if weights else None
    if not isinstance(node, Softmax) or node.size[-1] != outer.inner:
        return None
    scale, mask, row = 1.0, None, weights
    if node.hidden is not None:
        mask = torch.where(node.hidden, -math.inf, 0.0).to(torch.float64).flatten()
    while row == weights or entries.is_identity(row):
        bias = network.biases.get(row)
        if bias is not None:
            if bias.requires_grad:
                return None
            added = scale * bias.detach().to(torch.float64).flatten()
            mask = added if mask is None else mask + added
        if len(network.row(row)) != 1:
            return None
        ((row, op),) = network.row(row).items()
        factor = 1.0 if _changes_hidden_only(op, mask) else factor_of(op)
        if factor is None or row == 0:
            return None
        scale *= factor
    inner, factors = network.nodes[row - 1], entries.factors(row)
    if not isinstance(inner, MatrixProduct) or factors is None:
        return None
    if (inner.groups, inner.rows, inner.cols) != (outer.groups, outer.rows, outer.inner):
        return None
    return _Scores(factors[0], factors[1], inner.inner, scale, mask)


def _changes_hidden_only(op: LinearOperator, mask: Tensor | None) -> bool:
    """Whether an operator changes nothing but entries that the mask hides."""
    if not isinstance(op, Index) or mask is None or op.index.numel() != op.in_size:
        return False
    index = op.index.flatten().cpu()
    return bool(((index == torch.arange(len(index))) | ((index < 0) & (mask.cpu() == -math.inf))).all())


def _through_reshapes(entries: Entries, k: int) -> int:
    """The row whose value row k only reshapes."""
    while entries.is_identity(k) and k not in entries.network.biases and len(entries.network.row(k)) == 1:
        ((j, op),) = entries.network.row(k).items()
        if not isinstance(op, Reshape):
            break
        k = j
    return k


def _full(mask: Tensor | None, node: MatrixProduct) -> Tensor | None:
    return None if mask is None else mask.reshape(node.groups, node.rows, node.inner)


def _join(network: Network, node: Attention, queries: int, keys: int, values: int) -> dict[int, LinearOperator]:
    """The blocks that lay out (Q, K, V) one after the other; K' is transposed on the way."""
    h, n, m, d, e = node.heads, node.queries, node.keys, node.width, node.out
    parts = [
        (queries, torch.arange(h * n * d)),
        (keys, torch.arange(h * d * m).reshape(h, d, m).mT.flatten()),
        (values, torch.arange(h * m * e)),
    ]
    rows: dict[int, LinearOperator] = {}
    for slot, (row, _) in enumerate(parts):
        pieces = [p if i == slot else torch.full_like(p, -1) for i, (_, p) in enumerate(parts)]
        op = Index(torch.cat(pieces), network.shape_of(row))
        rows[row] = rows[row] + op if row in rows else op
    return rows
