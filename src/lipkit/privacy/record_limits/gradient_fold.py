"""Norms of values forward through a network, and of cotangents backward: what bounds one record's gradients."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.dag import Term, fold_row
from lipkit.errors import NotProvenError, UnsupportedError
from lipkit.linops import LinearOperator, Permute, Reshape
from lipkit.norms import Norm
from lipkit.privacy.record_limits.tensor_rules import Use, uses
from lipkit.regions import L2, Reach, tighten
from lipkit.rounding.float64 import log_of
from lipkit.trace import Network
from lipkit.trace.nodes import Node, VectorNorm

# What a pass may move a value by, relative to the sizes that are added up: values may lie so far outside of where real
# arithmetic puts them, and a kink may be crossed there. The error of a sum of n products is n^(3/2) u of these sizes at
# most. In float64 (u = 2^-53) that is less for n up to 2^24. In float32 (u = 2^-24) it need not be: n^(1/2) u is usual,
# and no worst case is proven.
_PASS = 2.0**-16
# How far a node's input is widened before its slopes are read: a kink at the end of a range counts with both sides.
_WIDER = 2.0**-10
# Entries up to which the rows of a last operator are written out.
_WRITTEN_OUT = 2**24
_ONE = Bound.from_value(1.0, Kind.EXACT, "an isometry")


@final
@dataclass(frozen=True)
class Cotangent:
    """What is known of the gradient of a loss in the outputs of a network: its norm, and that it is a mixture.

    Args:
        norm: The largest Euclidean norm.
        spread: c if every gradient is c times a mixture of differences e_a - e_b of unit vectors, as that of a
            cross-entropy is; None if nothing of the kind is known.
    """

    norm: float
    spread: float | None = None


@final
@dataclass(frozen=True, eq=False)
class NormFold:
    """Both passes through a network, of inputs in `start`, if the gradient in the outputs is as `end` says.

        forward    |z_k - A c - b| <= sum_j |A_kj| r_j       around the values c of the center, nodes by their `reach`
        backward   |d loss / d y_j| <= sum_k |A_kj| |d loss / d z_k|,   |d loss / d z_k| <= Lip(phi_k) |d loss / d y_k|

    with slopes Lip(phi_k) on what the node can receive, widened so that neither kinks nor float32 matter. Blocks that
    read or write different entries add up as a root of squares. The last linear layer before a cross-entropy counts
    with its pairs of rows: the gradient p - e_y is a mixture of e_a - e_y.

    Guarantee: upper bounds in real arithmetic and for a pass in float64, up to the rounding of sums over a batch. A
    pass in float32 is allowed 2^-16 of what is added up in every row: what was measured, which nothing proves.
    Cost: one norm a block, one evaluation of the network in float64. Reference: Béthune 2024, algorithm 8, for chains;
    ranges, pairs and graphs are ours.
    """

    network: Network
    start: Reach
    end: Cotangent
    norm: Norm

    @cached_property
    def _frozen(self) -> dict[tuple[int, int], LinearOperator]:
        """The blocks in float64, without gradients; converted once, because every pass reads them."""
        with torch.no_grad():
            return {at: _wide(op) for at, op in sorted(self.network.blocks.items())}

    @cached_property
    def _sizes(self) -> dict[tuple[int, int], Bound]:
        hard = {at: op for at, op in self._frozen.items() if not isinstance(op, Reshape | Permute)}
        found = dict(zip(hard, self._measure(list(hard.values())), strict=True))
        return {at: found.get(at, _ONE) for at in self._frozen}

    def _measure(self, ops: Sequence[LinearOperator]) -> list[Bound]:
        with torch.no_grad():
            found = Meter(L2, self.norm).many(ops, [False] * len(ops)) if ops else []
        for op, bound in zip(ops, found, strict=True):
            if bound.failure > 0:
                raise NotProvenError(
                    f"{self.norm} bounds the norm of {op} but for a chance of {bound.failure:.3g}, which no epsilon "
                    "counts; use a norm without chance, such as norms.Auto(failure=0)."
                )
        return found

    def size(self, op: LinearOperator) -> float:
        """A proven bound of the norm of one operator."""
        with torch.no_grad():
            return float(self._measure([_wide(op)])[0].value)

    @cached_property
    @torch.no_grad()
    def values(self) -> tuple[list[Reach], list[Reach]]:
        """Where z_1, ..., z_(K+1) and y_0, ..., y_K can lie; the first has an empty place for z_0."""
        network = self.network
        ys, zs = [self.start], [self.start]
        for k, row in network.rows().items():
            shift = network.biases.get(k)
            z = _reshaped(ys, row) if shift is None else None
            if z is None:
                z = self._row(k, row, shift, ys)
                self._require_finite(z, k)
            zs.append(z)
            if k < network.sink:
                node = network.nodes[k - 1]
                y = z if node.is_identity else node.reach(z)
                if y is not z:
                    self._require_finite(y, k)
                ys.append(y)
        return zs, ys

    def _row(self, k: int, row: Mapping[int, LinearOperator], shift: Tensor | None, ys: Sequence[Reach]) -> Reach:
        """Where z_k can lie: a ball around what the centers give, wider by what a pass may round."""
        center = torch.zeros(self.network.shape_into(k), dtype=torch.float64, device=self.start.center.device)
        center = center if shift is None else center + shift.detach().to(center)
        # What the roundings of the row are relative to.
        scale = float(torch.linalg.vector_norm(center))
        terms: list[Term] = []
        for j in row:
            frozen = self._frozen[k, j]
            center = center + frozen.apply(ys[j].center)
            terms.append(Term(frozen, self._sizes[k, j], log_of(ys[j].radius.cpu())))
            scale += float(self._sizes[k, j].value) * norm_of(ys[j])
        return _ball(center, float(fold_row(terms, 2.0, None).log_constant.exp()) + _PASS * scale)

    def _require_finite(self, reach: Reach, k: int) -> None:
        if not math.isfinite(norm_of(reach)):
            raise UnsupportedError(
                f"The values of {self.network.origin(k)} have no bound for records in the ball, so gradients behind it "
                "have none; use a smaller radius, or replace the layer."
            )

    @cached_property
    @torch.no_grad()
    def cotangents(self) -> tuple[list[float], list[float]]:
        """Bounds of |d loss / d z_k| and of |d loss / d y_k|, by index; place 0 of the first is that of y_0."""
        network = self.network
        readers: dict[int, list[int]] = {}
        for k, j in network.blocks:
            readers.setdefault(j, []).append(k)
        into, out = [0.0] * (network.sink + 1), [0.0] * (network.sink + 1)
        into[network.sink] = self.end.norm
        for j in range(network.sink - 1, -1, -1):
            terms = [
                Term(network.blocks[k, j].T, self._sizes[k, j], _log(into[k]), self._by_pairs(k, j))
                for k in sorted(readers.get(j, []))
            ]
            out[j] = float(fold_row(terms, 2.0, None).log_constant.exp())
            into[j] = out[j] * (self._slope(j) if j else 1.0)
        return into, out

    def _slope(self, k: int) -> float:
        node = self.network.nodes[k - 1]
        if node.is_identity:
            return 1.0
        z = self.values[0][k]
        more = _WIDER * norm_of(z)
        wide = Reach(z.low - more, z.high + more, z.center, z.radius + more)
        found = float(node.within(wide).log_constant(2.0).detach().exp())
        if not math.isfinite(found):
            raise UnsupportedError(
                f"{self.network.origin(k)} has no finite slope on what it receives from records in the ball; replace "
                "the layer, or move the records away from where it is steep."
            )
        return found * _lost_squares(node)

    def _by_pairs(self, k: int, j: int) -> Float64[Tensor, ""] | None:
        """log of a bound of |A_kj' g| over mixtures g of differences, if row k leads to the output and nowhere else."""
        network, sink = self.network, self.network.sink
        if self.end.spread is None:
            return None
        op = self._frozen[k, j]
        if k != sink:
            only = [at for at in network.blocks if at[1] == k] == [(sink, k)]
            if not (only and isinstance(network.blocks[sink, k], Reshape) and network.nodes[k - 1].is_identity):
                return None
        elif isinstance(op, Reshape):
            # Nothing more than the norm of the mixture itself.
            return None
        if op.out_size * op.in_size > _WRITTEN_OUT:
            return None
        ends = torch.eye(op.out_size, dtype=torch.float64, device=op.device).reshape(-1, *op.out_shape)
        rows = op.adjoint(ends).flatten(1)
        widest = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").max()
        # Rounding of the rows and of their distances, far below that of a pass.
        error = _PASS * torch.linalg.vector_norm(rows, dim=1).max()
        return log_of(self.end.spread * (widest + error)).cpu()

    def uses(self) -> Iterator[Use]:
        """Every trained tensor of the blocks and biases, each time it is used, with a bound of its gradient there."""
        ys, into = self.values[1], self.cotangents[0]
        # Biases first: one that is computed from others, as that of a batch norm, is then refused by their names.
        for k, bias in self.network.biases.items():
            if bias.requires_grad:
                yield Use(bias, into[k])
        for (k, j), op in self.network.blocks.items():
            yield from uses(op, norm_of(ys[j]), into[k], self.size)


def _wide(op: LinearOperator) -> LinearOperator:
    return op.map(Tensor.detach).to(torch.float64)


def _reshaped(ys: Sequence[Reach], row: Mapping[int, LinearOperator]) -> Reach | None:
    """The reach of a value in another shape, where a row is nothing else: no number is rounded."""
    if len(row) != 1:
        return None
    ((j, op),) = row.items()
    if not isinstance(op, Reshape):
        return None
    low, high, center = (t.reshape(op.out_shape) for t in (ys[j].low, ys[j].high, ys[j].center))
    return Reach(low, high, center, ys[j].radius)


def _lost_squares(node: Node) -> float:
    """How much longer torch's derivative of a norm can be than the norm's: it divides by a root that lost squares.

    Squares of n entries below the square root of the least number h > 0 are off by h/2 each, or all of h where they are
    flushed to zero. A sum s^2 that is not zero is h or more, so |z|^2 <= s^2 (1 + n) and |z| / s is at most the root.
    The factor 2 covers sums of other powers q, whose derivative has powers of |z_i| / s, at most 2^(1/q).
    """
    if not (isinstance(node, VectorNorm) and 1 < node.order < math.inf):
        return 1.0
    return math.sqrt((1 + node.size[-1]) * (1.0 if node.order == 2 else 2.0))


def norm_of(reach: Reach) -> float:
    """A bound of the norm of every value of a reach, by its ball or by its box."""
    ball = float(torch.linalg.vector_norm(reach.center) + reach.radius)
    box = float(torch.linalg.vector_norm(torch.maximum(reach.low.abs(), reach.high.abs())))
    return min(ball, box) if not math.isnan(box) else ball


def input_ball(shape: tuple[int, ...], radius: float, device: torch.device) -> Reach:
    """The ball of a radius around zero."""
    return _ball(torch.zeros(shape, dtype=torch.float64, device=device), radius)


def _ball(center: Float64[Tensor, "..."], radius: float) -> Reach:
    return tighten(Reach(center - radius, center + radius, center, center.new_tensor(radius)))


def _log(value: float) -> Float64[Tensor, ""]:
    return log_of(torch.tensor(value, dtype=torch.float64))
