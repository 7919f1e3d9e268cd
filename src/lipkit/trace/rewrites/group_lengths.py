"""Lengths of groups of entries, and powers of them, read off the rows of a network."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lipkit.linops import Index, LinearOperator, Permute, Reshape, Scaled, Shape
from lipkit.trace.nodes import Activation, PiecewiseLinear, Pointwise, VectorNorm
from lipkit.trace.nodes.activations.powers import RECIPROCAL, RSQRT, SQRT, SQUARE
from lipkit.trace.rewrites.entrywise_functions import Entries


@final
@dataclass(frozen=True, eq=False)
class Statistic:
    """(weight |x_g|^2 + eps)^power for groups g of the entries of x; if `floor` > 0, max(|x_g|, floor)^(2 power).

    `groups` says for every entry of this value which group it belongs to. `sums` maps x^2 to the sums over groups, up
    to the weight, or is None where `members` lists the positions of each group.
    """

    groups: Tensor
    weight: float
    eps: float
    power: float
    floor: float = 0.0
    sums: LinearOperator | None = None
    members: Tensor | None = None

    def is_of(self, groups: Tensor) -> bool:
        """Whether the lengths are those of these groups, given for every entry of x."""
        if self.members is not None:
            expected = torch.arange(len(self.members))[:, None].expand(self.members.shape)
            # Every entry of x once: a norm over some of them, or of one twice, is another function.
            once = torch.equal(self.members.flatten().sort().values, torch.arange(groups.numel()))
            return once and torch.equal(groups[self.members], expected)
        assert self.sums is not None
        generator = torch.Generator().manual_seed(0)
        # Two linear maps that agree on a normal vector are the same, up to what rounding hides.
        x = torch.randn(groups.numel(), generator=generator, dtype=torch.float64)
        sums = torch.zeros(self.sums.out_size, dtype=torch.float64)
        if self.sums.in_size != groups.numel() or int(groups.max()) >= len(sums):
            return False
        sums = sums.index_add(0, groups, x)
        found = self.sums.to(torch.float64, "cpu").apply(x.reshape(self.sums.in_shape)).flatten()
        return bool((found - self.weight * sums).abs().max() <= 1e-12 * self.weight * x.abs().sum())


def statistic(entries: Entries, k: int, x: int) -> Statistic | None:
    """The value of row k as a statistic of row x, if it is one."""
    if k == 0:
        return None
    node = entries.network.nodes[k - 1]
    if isinstance(node, VectorNorm):
        return _length(entries, k, x) if node.order == 2 else None
    if not isinstance(node, Pointwise) or len(entries.network.row(k)) != 1:
        return None
    ((source, op),) = entries.network.row(k).items()
    below = _mean(entries, source, x, op) or statistic(entries, source, x)
    if below is None:
        return None
    moved = below if below.sums is op else _move(below, op)
    shifted = None if moved is None else _shift(moved, entries.network.biases.get(k))
    return shifted if shifted is None or node.is_identity else _raise_to_power(shifted, node.activation)


def _length(entries: Entries, k: int, x: int) -> Statistic | None:
    """|x_g| by a norm node, whose groups are rows of entries of x in some order."""
    shape: Shape = entries.network.nodes[k - 1].shape
    row, moves = k, list[LinearOperator]()
    while row == k or not entries.same(row, x):
        if row == 0 or len(entries.network.row(row)) != 1 or row in entries.network.biases:
            return None
        ((row, op),) = entries.network.row(row).items()
        if not isinstance(op, _MOVES) or not (row == 0 or entries.is_identity(row) or entries.same(row, x)):
            return None
        if isinstance(op, Index) and bool((op.index < 0).any()):
            return None
        moves.append(op)
    places = torch.arange(math.prod(entries.network.shape_of(row)), dtype=torch.float64)
    for move in reversed(moves):
        places = move.apply(places.reshape(move.in_shape))
    count = math.prod(shape[:-1])
    return Statistic(torch.arange(count), 1.0, 0.0, 0.5, members=places.reshape(count, shape[-1]).long())


def _mean(entries: Entries, source: int, x: int, op: LinearOperator) -> Statistic | None:
    """weight |x_g|^2 by a linear map of the squares; the weight is what it gives for ones, over the size of a group."""
    if entries.activation(source) is not SQUARE or entries.number.input_of(source) != entries.number.value(x):
        return None
    if op.out_size == 0 or op.in_size % op.out_size:
        return None
    total = op.to(torch.float64, "cpu").apply(torch.ones(op.in_shape, dtype=torch.float64)).flatten()
    weight = total[0].item() * op.out_size / op.in_size
    groups = torch.arange(op.out_size)
    return Statistic(groups, weight, 0.0, 1.0, sums=op) if weight > 0 else None


_MOVES = (Reshape, Permute, Index)


def _move(below: Statistic, op: LinearOperator) -> Statistic | None:
    """A statistic after an operator that moves, repeats and scales."""
    factor = 1.0
    while isinstance(op, Scaled) and not op.factor.requires_grad:
        factor, op = factor * op.factor.item(), op.inner
    if not isinstance(op, _MOVES) or factor <= 0:
        return None
    if isinstance(op, Index) and bool((op.index < 0).any()):
        return None
    groups = op.apply(below.groups.to(torch.float64).reshape(op.in_shape)).flatten().long()
    if factor == 1:
        return replace(below, groups=groups)
    if below.floor:
        return None
    inner = factor ** (1 / below.power)
    return replace(below, groups=groups, weight=below.weight * inner, eps=below.eps * inner)


def _shift(below: Statistic, bias: Tensor | None) -> Statistic | None:
    if bias is None:
        return below
    eps = bias.flatten()[0].item()
    uniform = not bias.requires_grad and bool((bias == eps).all()) and eps >= 0
    return replace(below, eps=below.eps + eps) if uniform and below.power == 1 else None


def _raise_to_power(below: Statistic, activation: Activation) -> Statistic | None:
    powers = {id(SQUARE): 2.0, id(SQRT): 0.5, id(RSQRT): -0.5, id(RECIPROCAL): -1.0}
    if id(activation) in powers:
        return replace(below, power=below.power * powers[id(activation)])
    if isinstance(activation, PiecewiseLinear) and activation.gradients == (0.0, 1.0) and not below.floor:
        # max(|x|, floor), by a clamp from below.
        floor = activation.knots[0]
        plain = below.weight == 1 and below.eps == 0 and below.power == 0.5 and activation.at_knots() == (floor,)
        return replace(below, floor=floor) if plain and floor > 0 else None
    return None
