"""Which norm a block of a network is measured in, and by what."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Metric
from lipkit.bounds.fold.linear_paths import length, multiply_out
from lipkit.errors import KindError, MetricError
from lipkit.linops import (
    AvgPool,
    BatchNorm,
    Conv,
    Diagonal,
    Index,
    LinearOperator,
    Permute,
    Reshape,
    StatedRounding,
    depth,
    factors,
    magnitude,
    materialize,
    product,
)
from lipkit.norms import Auto, Mixed, Norm
from lipkit.rounding.float64 import gamma
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192

Parts = tuple[LinearOperator, ...]


def core(op: LinearOperator, euclidean: bool) -> LinearOperator:
    """A smaller operator with the norm of `op`, live in the same tensors; `op` itself where nothing is known.

    Three identities, which turn a part of a concatenation back into the convolution that it is:

        ||J A|| = ||A||             for J that puts every entry in a place of its own, in every l_p;
        S J = J S'                  for a batch norm S after J puts whole channels side by side, S' their scales;
        ||S P C|| = ||S C'|| / 2^k  for P that averages disjoint windows of 4^k entries and a 1 x 1 convolution C, which
                                    commutes with it; only if `euclidean`, because P is 2^-k times a coisometry.

    Nothing is multiplied out, and the factor is a power of two, so the rounding errors are those of fewer operations.
    Cost: one look at the positions.
    """
    parts = tuple(factors(op))
    placed = _without_placing(parts)
    averaged = _without_averaging(placed or parts) if euclidean else None
    if averaged is not None:
        return averaged
    return op if placed is None else reduce(product, placed)


def _without_placing(parts: Parts) -> Parts | None:
    """The factors without those that only place outputs; None if there are none to leave out."""
    scale: BatchNorm | None = None
    for at, part in enumerate(parts[:-1]):
        if isinstance(part, Reshape) or (scale is None and isinstance(part, Permute)):
            continue
        if scale is None and isinstance(part, BatchNorm):
            scale = part
            continue
        inner = _place(part, scale) if isinstance(part, Index) else None
        if inner is None:
            return None
        rest = (*inner, *parts[at + 1 :])
        return _without_placing(rest) or rest
    return None


def _place(op: Index, scale: BatchNorm | None) -> Parts | None:
    """The rest of a batch norm after `op`, if `op` gives every entry a place of its own; None if it does not."""
    index = op.index.flatten()
    used = index[index >= 0]
    every = torch.arange(op.in_size, device=index.device)
    if not torch.equal(used.sort().values, every):
        return None
    if scale is None:
        return ()
    channels = index.reshape(scale.shape[0], -1)
    kept = (channels[:, 0] >= 0).nonzero().flatten()
    # Whole channels in their order: entry after entry.
    if not torch.equal(channels[kept].flatten(), every):
        return None
    shape = (len(kept), *scale.shape[1:])

    def chosen(t: Tensor) -> Tensor:
        return t.index_select(0, kept.to(t.device))

    weight = None if scale.weight is None else chosen(scale.weight)
    fewer = replace(scale, weight=weight, variance=chosen(scale.variance), shape=shape)
    return fewer, Reshape(op.in_shape, shape)


def _without_averaging(parts: Parts) -> LinearOperator | None:
    """The product of scales, averages and a 1 x 1 convolution without the averages; None if it is not one."""
    rest = [part for part in parts if not isinstance(part, Reshape)]
    scales, inner = rest[:-2], rest[-2:]
    if len(inner) < 2 or not all(isinstance(scale, BatchNorm) for scale in scales):
        return None
    pool, conv = inner
    if not (isinstance(pool, AvgPool) and isinstance(conv, Conv) and pool.in_shape == conv.out_shape):
        return None
    if not (_averages(pool) and _mixes_channels(conv)):
        return None
    smaller: LinearOperator = replace(conv, spatial=pool.out_shape[1:])
    for scale in reversed(scales):
        smaller = product(scale, product(Reshape(smaller.out_shape, scale.in_shape), smaller))
    return smaller * torch.tensor(math.prod(pool.kernel) ** -0.5, dtype=conv.dtype, device=conv.device)


def _averages(pool: AvgPool) -> bool:
    """Whether windows are disjoint, cover the image and have 4^k entries, so that P P* = 4^-k."""
    whole = all(n % k == 0 for n, k in zip(pool.spatial, pool.kernel, strict=True))
    count = math.prod(pool.kernel)
    exponent = round(math.log2(count))
    return (
        pool.kernel == pool.stride
        and not any(pool.padding)
        and whole
        and pool.divisor == count == 2**exponent
        and exponent % 2 == 0
    )


def _mixes_channels(conv: Conv) -> bool:
    """Whether it is the same matrix at every position, so that it commutes with what treats channels alike."""
    return set(conv.kernel) == {1} and set(conv.stride) == {1} and not any(any(sides) for sides in conv.padding)


@final
@dataclass(frozen=True)
class Meter:
    """Measures blocks for a constant in `metric`: l_p in the middle of the network, l_p_in -> l_p at its input.

    The middle norm p is that of the output, so that the last block needs no change of norm. In l2 blocks are measured
    by `spectral`; otherwise by closed forms (`Mixed`), which exist for p_in = 1, p_out = inf and p_in = p_out.
    """

    metric: Metric = L2
    spectral: Norm = Auto()

    @property
    def p(self) -> float:
        """The norm of the values inside the network."""
        return self.metric.p_out

    def many(self, ops: Sequence[LinearOperator], at_input: Sequence[bool], loosened: float = 1.0) -> list[Bound]:
        """Bounds of the norms of blocks, those that act on the input told apart; refuses what is no upper bound.

        With `loosened` > 1 their excess over the norms may be that many times as large, where that is cheaper.
        """
        p_in = [self.metric.p_in if first else self.p for first in at_input]
        found: dict[int, Bound] = {}
        for p in set(p_in):
            chosen = [i for i, q in enumerate(p_in) if q == p]
            euclidean = (p, self.p) == (2.0, 2.0)
            method = self.spectral.loosened(loosened) if euclidean else _mixed_norm(p, self.p, self.metric)
            cores = [multiply_out(core(ops[i], euclidean)) for i in chosen]
            # The vectors of a core are not those of the block.
            found.update(
                (i, replace(b, witness=None, state=None)) for i, b in zip(chosen, method.many(cores), strict=True)
            )
        for bound in found.values():
            if not bound.kind.certifies:
                raise KindError(
                    f"{self.spectral} gave {bound}, which is no upper bound; use a norm that is, such as norms.Auto()."
                )
        return [found[i] for i in range(len(ops))]

    def spectral_size(self, op: LinearOperator, bound: Bound, at_input: bool) -> float:
        """A bound of ||A||_2 from the bound of ||A|| in the norms this measures in, which may be far smaller:

            ||A||_2 <= m^(1/2 - 1/q)+ n^(1/p - 1/2)+ ||A||_{p -> q},   for A from R^n to R^m.

        Rounding errors are stated in the spectral norm, so their weights must be. Where || |A| ||_2 is known and is
        smaller, it serves.
        """
        p = self.metric.p_in if at_input else self.p
        power = op.out_size ** max(0.0, 0.5 - 1 / self.p) * op.in_size ** max(0.0, 1 / p - 0.5)
        size = float(bound.value.detach()) * power * (1 + ROUNDINGS_8192)
        known = magnitude(op)
        return size if known.relative or power == 1 else min(size, float(known.absolute))


def _mixed_norm(p_in: float, p_out: float, metric: Metric) -> Norm:
    if p_in == 1 or p_out == math.inf or p_in == p_out:
        return Mixed(p_in, p_out)
    raise MetricError(
        f"A constant in {metric} needs the norm of a block from l{p_in:g} to l{p_out:g}, which has no closed form; "
        "use a metric with p_in = p_out, p_in = 1 or p_out = inf."
    )


def dominating_diagonals(op: LinearOperator) -> list[Float64[Tensor, " n"]]:
    """Vectors d with ||G v||^2 <= sum_i d_i^2 v_i^2 for all v, that is G*G <= diag(d)^2, for G the matrix of `op`.

        d_i^2 = sum_l |G*G|_il q_l / q_i   for any q > 0 (Gershgorin on diag(q)^-1 |G*G| diag(q)),

    with q = 1 (AOL) and with q the norms of the columns of G (SLL). Live in the operator's tensors; the rounding of the
    products and of G itself is added.
    """
    full = materialize(op.to(torch.float64))
    # In units of its largest entry, a power of two, so that squares neither over- nor underflow.
    exponent = torch.frexp(full.detach().abs().max()).exponent.clamp(-1000, 1000)
    unit = torch.exp2(exponent.to(torch.float64))
    matrix = full / unit
    gram = (matrix.mT @ matrix).abs()
    size = float(torch.linalg.vector_norm(matrix.detach()))
    known = magnitude(op)
    error = gamma(depth(op)) * (float(known.absolute / unit) + known.relative * size)
    slack = 2 * gamma(sum(matrix.shape) + 8) * size**2 + 2 * size * error + error**2
    columns = torch.linalg.vector_norm(matrix, dim=0).clamp(min=1e-12 * size + 1e-300)
    found: list[Tensor] = []
    for q in (torch.ones_like(columns), columns):
        square = (gram * q).sum(1) / q * (1 + gamma(gram.shape[0] + 8)) + slack
        found.append(square.sqrt() * unit * (1 + ROUNDINGS_8))
    return found


def scale_rows(d: Float64[Tensor, " n"], op: LinearOperator) -> LinearOperator:
    """diag(d) A for an operator with n outputs, with its rounding error."""
    scale = Diagonal(d.reshape(op.out_shape), op.out_shape)
    known = magnitude(op)
    largest = float(d.detach().max())
    size = length(materialize(op)) * (1 + known.relative)
    return StatedRounding(product(scale, op), depth(op) + 4, (float(known.absolute) + size) * largest)
