"""Multipliers that need no solver: what the fold of the norms proves, as a point of the program."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.dense_network import DenseNetwork, Slopes, Whole
from lipkit.bounds.sdp.program import Constraint, Multipliers, Program


def fold_point(network: DenseNetwork, program: Program, multipliers: Multipliers) -> Float64[Tensor, " groups"]:
    """A strictly feasible point (rho, tau) whose rho is little more than the square of the fold of the norms.

    Backwards, with g_k |y_k|^2 what is needed of node k:
        |sum_j A_j y_j|^2 <= sum_j |A_j| (sum_i |A_i|) |y_j|^2,
        g |c z + r w|^2 <= h |z|^2 + t (|w|^2 - |z|^2)   for t = g s, s > r^2, h = g (s + c^2 + c^2 r^2 / (s - r^2)),
    and h is least at s = r (|c| + r), where it is g (|c| + r)^2. Each step gives a little away, so that all
    inequalities are strict.
    """
    margin = 1 + 1 / (len(network.nodes) + 2)
    found = torch.zeros(program.groups + 1, dtype=torch.float64)
    indices = list(network.nodes)
    need = dict.fromkeys((0, *indices), 0.0)
    constraints = {one.node: one for one in program.constraints}
    for k in (network.sink, *reversed(indices)):
        needed = 1.0
        if k != network.sink:
            factor, shares = _passed(network.nodes[k], multipliers, margin)
            needed = need[k] * margin * factor
            if k in constraints:
                found[_groups(constraints[k])] = need[k] * margin * _of_groups(shares, constraints[k], multipliers)
        sizes = {j: block.size for j, block in network.row(k).items()}
        for j, size in sizes.items():
            # A block that vanishes still needs a positive weight.
            need[j] += needed * margin * (size * sum(sizes.values()) + 1e-9)
    found[0] = need[0] * margin
    return found


def _groups(constraint: Constraint) -> slice:
    return slice(1 + int(constraint.rest_group.min()), 2 + int(constraint.rest_group.max()))


def _of_groups(shares: Tensor, constraint: Constraint, multipliers: Multipliers) -> Tensor:
    if len(shares) == 1 or multipliers is Multipliers.PER_LAYER:
        return shares[:1]
    return shares[constraint.neurons]


def _passed(node: Slopes | Whole, multipliers: Multipliers, margin: float) -> tuple[float, Tensor]:
    """(h, s) for g = 1 at one node: s has one entry for each neuron, or one for all."""
    if isinstance(node, Whole):
        center = torch.tensor([node.center.size if node.center is not None else 0.0], dtype=torch.float64)
        radius = torch.tensor([node.scale.size], dtype=torch.float64)
    else:
        center, radius = node.center.abs(), node.radius
    share = radius * (center + radius) * margin
    if multipliers is Multipliers.PER_LAYER:
        share = share.max().expand_as(share)
    active = radius > 0
    rest = torch.where(active & (center > 0), (center * radius) ** 2 / (share - radius**2), 0.0)
    passed = torch.where(active, share + rest, 0.0) + center**2
    return float(passed.max()), share
