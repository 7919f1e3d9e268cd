"""Normalisation that a model spells out: x / |x|, x rsqrt(mean(x^2) + eps), (x - mean) / sqrt(var + eps)."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.linops import Index, LinearOperator, Shape
from lipkit.trace.network import Network
from lipkit.trace.nodes import Node, Normalization, Unit
from lipkit.trace.rewrites.entrywise_functions import Entries
from lipkit.trace.rewrites.exchange_rows import Rewriting
from lipkit.trace.rewrites.group_lengths import Statistic, statistic


@final
@dataclass(frozen=True, eq=False)
class _Found:
    """factor * node(x), where row g of the node's input holds the entries of x at `positions[g]`."""

    node: Node
    x: int
    positions: Tensor
    factor: float


def merge_normalizers(network: Network) -> Network:
    """The same function with x times its inverse length as one node, which has a constant on the whole space.

    Known are x / max(|x|, eps) (F.normalize) and x / sqrt(w |x|^2 + eps), by rsqrt or by a square root and a quotient,
    over groups of d entries: RMS norm, and layer norm where x is centered. The second is
        x / sqrt(w |x|^2 + eps) = RMSnorm(x) / sqrt(w d), with eps / (w d) in place of eps.
    """
    entries, rewriting = Entries(network), Rewriting(network)
    for k in range(1, network.sink):
        rows = entries.factors(k)
        for first, second in (rows, rows[::-1]) if rows is not None else ():
            found = _normalizer(entries, k, first, second)
            if found is not None:
                _replace(network, rewriting, k, found)
                break
    return rewriting.result()


def _normalizer(entries: Entries, k: int, first: int, second: int) -> _Found | None:
    """Row k as a normalisation of what row `first` carries, `second` being its inverse length."""
    network = entries.network
    carrier, target = entries.carrier(first), network.nodes[k - 1].target
    if carrier is None or math.prod(network.shape_of(first)) != math.prod(target):
        return None
    x, _, factor = carrier
    found = statistic(entries, second, x)
    if found is None:
        return None
    groups = _spread(found.groups, network.shape_of(second), target)
    count = int(groups.max()) + 1
    members = torch.bincount(groups, minlength=count)
    if not (bool((members == members[0]).all()) and found.is_of(groups)):
        return None
    positions = torch.argsort(groups, stable=True).reshape(count, -1)
    node, scale = _node(found, positions.shape[1], count)
    return None if node is None else _Found(node, x, positions, factor * scale)


def _node(found: Statistic, d: int, count: int) -> tuple[Node | None, float]:
    """The node that divides groups of d entries, and the number in front of it."""
    if found.power != -0.5:
        return None, 0.0
    if found.floor:
        plain = found.weight == 1 and found.eps == 0
        return (Unit((count, d), found.floor), 1.0) if plain else (None, 0.0)
    scale = found.weight * d
    return Normalization((count, d), found.eps / scale, False), 1 / math.sqrt(scale)


def _spread(groups: Tensor, shape: Shape, target: Shape) -> Tensor:
    return groups.reshape(shape).expand(target).flatten()


def _replace(network: Network, rewriting: Rewriting, k: int, found: _Found) -> None:
    count, d = found.positions.shape
    gather = Index(found.positions.contiguous(), network.shape_of(found.x))
    back = torch.empty(count * d, dtype=torch.int64)
    back[found.positions.flatten()] = torch.arange(count * d)
    scatter: LinearOperator = Index(back.reshape(network.nodes[k - 1].target), (count, d))
    rewriting.replace(k, found.node, {found.x: gather})
    rewriting.redirect(k, k, scatter if found.factor == 1 else scatter * found.factor)
