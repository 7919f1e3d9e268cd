"""Convexity through a network by the rules of composition, entry by entry."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from lipkit.bounds._measured import Affine, MeasuredNetwork
from lipkit.bounds._signs import carried, reached
from lipkit.bounds.soft_maximum import SoftMaximum
from lipkit.trace import Reach
from lipkit.trace.nodes import Node, Pointwise
from lipkit.trace.nodes.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.order import OrderStatistics
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.windows import WindowMax


@final
@dataclass(frozen=True, eq=False)
class Curvature:
    """Which entries of a value are proven convex, and which concave, in the input; affine ones are both."""

    convex: Bool[Tensor, "..."]
    concave: Bool[Tensor, "..."]

    @property
    def neither(self) -> Bool[Tensor, "..."]:
        """Entries of which nothing is known."""
        return ~(self.convex | self.concave)


@final
@dataclass(frozen=True, eq=False)
class Composition:
    """What the rules of composition prove of every value: `into[k]` of z_k, `out[j]` of y_j.

    affine functions are convex and concave;  sums with weights >= 0 keep both, weights <= 0 exchange them;
    f(g) is convex if f is convex, and g is affine, or g is convex and f rises, or g is concave and f falls
    (on the range of g; the mirror image for concave);
    a maximum, and its smooth version, is convex if every argument is.
    """

    found: MeasuredNetwork
    into: dict[int, Curvature]
    out: dict[int, Curvature]

    @property
    def output(self) -> Curvature:
        """Of the output of the network."""
        return self.into[self.found.network.sink]

    def obstacle(self, entry: int) -> str:
        """Where the proof for one entry of the output ends: the operation farthest back that loses the property."""
        network = self.found.network
        mask = torch.zeros(network.target, dtype=torch.bool, device=self.found.device)
        mask.view(-1)[entry] = True
        k = network.sink
        while True:
            marks = {j: reached(block.op.T, mask) for j, block in self.found.fused[k].blocks.items()}
            lost = [j for j, mark in marks.items() if bool((mark & self.out[j].neither).any())]
            if not lost:
                break
            k, mask = lost[0], self._inside(lost[0], marks[lost[0]] & self.out[lost[0]].neither)
            if not bool(mask.any()):
                return f"{network.origin(k)}: {network.nodes[k - 1]} is not proven convex or concave there"
        if bool((self.into[k].concave & mask).any()):
            return f"{network.origin(k)}: proven concave, and not affine"
        return f"{network.origin(k)}: adds convex and concave values"

    def _inside(self, j: int, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """The entries of z_j behind the marked ones of y_j of which nothing is known either."""
        neither = self.into[j].neither
        return mask & neither if isinstance(self.found.network.nodes[j - 1], Pointwise) else neither


def composed(found: MeasuredNetwork, zs: list[Reach]) -> Composition:
    """The rules of composition through all rows, with the ranges `zs` of their values. Cost: see `carried`."""
    network = found.network
    whole = torch.ones(network.source, dtype=torch.bool, device=found.device)
    into: dict[int, Curvature] = {}
    out = {0: Curvature(whole, whole)}
    for k, row in found.fused.items():
        into[k] = _row(row, out)
        if k < network.sink:
            out[k] = _through(network.nodes[k - 1], into[k], zs[k - 1])
    return Composition(found, into, out)


def _row(row: Affine, out: dict[int, Curvature]) -> Curvature:
    above = torch.zeros_like(row.shift, dtype=torch.bool)
    below = torch.zeros_like(row.shift, dtype=torch.bool)
    for j, block in row.blocks.items():
        up, down = carried(block.op, ~out[j].convex, ~out[j].concave)
        above, below = above | up, below | down
    return Curvature(~above, ~below)


def _through(node: Node, z: Curvature, reach: Reach) -> Curvature:
    match node:
        case Pointwise():
            return _pointwise(node, z, reach)
        case WindowMax():
            every = z.convex[..., node.windows].all(-1)
            return Curvature(every, torch.zeros_like(every))
        case SoftMaximum():
            every = (z.convex if node.sign > 0 else z.concave)[..., node.windows].all(-1)
            nothing = torch.zeros_like(every)
            return Curvature(every, nothing) if node.sign > 0 else Curvature(nothing, every)
        case LogSumExp():
            every = z.convex.all(-1, keepdim=True)
            return Curvature(every, torch.zeros_like(every))
        case LogSoftmax():
            affine = (z.convex & z.concave).all(-1, keepdim=True).expand(node.target)
            return Curvature(torch.zeros_like(affine), affine)
        case VectorNorm():
            # A norm rises with every entry that is >= 0.
            known = (z.convex & z.concave) | (z.convex & (reach.low >= 0)) | (z.concave & (reach.high <= 0))
            every = known.all(-1, keepdim=True)
            return Curvature(every, torch.zeros_like(every))
        case OrderStatistics():
            length = node.shape[-1]
            places = torch.tensor([rank % length for rank in node.ranks], device=z.convex.device)
            convex, concave = z.convex.all(-1, keepdim=True), z.concave.all(-1, keepdim=True)
            return Curvature(convex & (places == length - 1), concave & (places == 0))
        case _:
            nothing = torch.zeros(node.target, dtype=torch.bool, device=z.convex.device)
            return Curvature(nothing, nothing)


def _pointwise(node: Pointwise, z: Curvature, reach: Reach) -> Curvature:
    if node.is_identity:
        return z
    alpha, beta = node.activation.slopes(reach.low, reach.high)
    under, over = node.activation.bends(reach.low, reach.high)
    flat = (alpha == 0) & (beta == 0)
    rises, falls, affine = alpha >= 0, beta <= 0, z.convex & z.concave
    convex = (under >= 0) & (affine | (z.convex & rises) | (z.concave & falls))
    concave = (over <= 0) & (affine | (z.concave & rises) | (z.convex & falls))
    return Curvature(convex | flat, concave | flat)
