"""Differences of two values of a network as sums of linear images of bounded vectors, and how large they can be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import Diagonal, Shape
from lipkit.norms import Cholesky
from lipkit.rounding.float64 import exp_of, gamma, norm_up
from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_512
from lipkit.trace.nodes import Node, Normalization, Pointwise, Softmax, Split, Unit
from lipkit.trace.nodes._small_norms import spectral_above

Gains = Mapping[int, Tensor]
_ULPS = 1 + ROUNDINGS_32
# The share of a norm that terms measured by their Frobenius norms may add to it.
_MINOR = 1e-2
# Squarings behind a norm: n^(1/64) for rank n, 10 % for a flat spectrum of 500; behind that of a result 0.3 %.
STEPS, LAST_STEPS = 5, 11
# The same behind the norm of one of several terms, which is a scale and no more where all are measured together.
_SCALE_STEPS = 3
# Steps of power iteration for such a scale.
_GUESSES = 4
# From this side on a guess and its proof take a fraction of the time of squarings, and are nearer.
_LARGE = 1024
_PROVEN, _LAST_PROVEN = Cholesky(rtol=2e-2, steps=30), Cholesky(rtol=1e-3, steps=60)
# Nodes of which every group of entries with one factor of the rest depends on the same entries of the input.
_SEPARATE = (Pointwise, Normalization, Unit, Softmax)
# The share of the largest term that others may have together to be merged.
_MERGED = 2.0**-11


@final
@dataclass(frozen=True, eq=False)
class Change:
    """A difference of two values of one tensor as sum_s T_s w_s + e, with |w_s| <= gain_s and |e| <= error, all in
    units of the difference of the inputs; w_0 is that of the inputs itself. T_s is stored as (columns, *shape).

    The same T_s say how far the exact value at the center is from the computed one: sum_s T_s v_s + d, |d| <= drift.
    """

    parts: dict[int, Tensor]
    error: Tensor
    drift: Tensor

    def mass(self, gains: Gains) -> Tensor:
        """sum_s |T_s|_F gain_s: what rounding errors are relative to."""
        return sum((norm_up(t.flatten(), 1) * gains[s] for s, t in self.parts.items()), torch.zeros_like(self.error))

    def entries(self, at: slice) -> "Change":
        """The change of some entries of a vector."""
        return Change({s: t[:, at] for s, t in self.parts.items()}, self.error, self.drift)


@final
@dataclass(frozen=True, eq=False)
class Sizes:
    """How large the vectors behind the terms of all changes are: |w_s| <= gains[s] and |v_s| <= drifts[s]."""

    gains: dict[int, Tensor]
    drifts: dict[int, Tensor]

    def add(self, change: Change, s: int, columns: Tensor, gain: Tensor, drift: Tensor) -> None:
        """One more term T_s w_s."""
        change.parts[s], self.gains[s], self.drifts[s] = columns, gain, drift

    def isolate(self, change: Change, s: int, shape: Shape) -> Change:
        """The same change, whose error is the term s with T = 1.

        As a term it passes through linear maps as they are composed, where an error grows by the norm of each. So its
        growth is that of the network and not that of a product of norms.
        """
        parts = dict(change.parts)
        found = Change(parts, torch.zeros_like(change.error), torch.zeros_like(change.drift))
        self.add(found, s, unit_tensors(shape, change.error.device), change.error, change.drift)
        return found

    def merge(self, change: Change, s: int) -> Change:
        """The same change, whose smallest terms and error are the term s with T = 1, if that has fewer columns.

        For e = sum_j T_j w_j over these is at most the gain of them together, whatever the w_j are. They are at most
        `_MERGED` of the largest term, but not that of the inputs. So values that many rows read do not carry a column
        for every entry of every node before them.
        """
        sizes = {j: float(_rough_norm(t.flatten(1)) * self.gains[j]) for j, t in change.parts.items()}
        left, minor = _MERGED * max(sizes.values(), default=0.0), dict[int, Tensor]()
        for j in sorted(sizes, key=lambda j: sizes[j]):
            left -= sizes[j]
            if left < 0 or not j:
                break
            minor[j] = change.parts[j]
        shape = tuple(next(iter(change.parts.values())).shape[1:]) if minor else ()
        if sum(map(len, minor.values())) <= math.prod(shape):
            return change
        few = Change(minor, change.error, change.drift)
        error, drift = whole_gain(few, self.gains), whole_gain(replace(few, error=few.drift), self.drifts)
        kept = {j: t for j, t in change.parts.items() if j not in minor}
        return self.isolate(Change(kept, error, drift), s, shape)


def unit_tensors(shape: Shape, device: torch.device) -> Float64[Tensor, "size ..."]:
    """The unit tensors of a shape, one after the other."""
    size = math.prod(shape)
    return torch.eye(size, dtype=torch.float64, device=device).reshape(size, *shape)


def rest_terms(node: Node, split: Split, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """T and W with R psi(z) = T w, |w - w'| <= |W (z - z')| and 0 <= W <= 1, as columns and as weights.

    Where R is a factor for each of several groups that psi keeps apart, R = m r^2 with m its largest factor, the
    two roots are T = m r and W = r: entries with a small rest count little on both sides.
    """
    units = unit_tensors(node.target, device)
    columns = split.scale.to(device=device).apply(units)
    columns = columns[columns.flatten(1).any(1)]
    if not (isinstance(node, _SEPARATE) and isinstance(split.scale, Diagonal) and len(columns)):
        return columns, None
    scale = split.scale.scale.to(device=device).expand(node.shape)
    largest = scale.max()
    # No positive factor may vanish beside the largest one.
    share = torch.where(scale > 0, (scale / largest).clamp(min=1e-200), 0.0).sqrt() * _ULPS
    outer = units * (largest * share * _ULPS)
    return outer[outer.flatten(1).any(1)], share.clamp(max=1.0)


def whole_gain(change: Change, gains: Gains, steps: int = STEPS, weight: Tensor | None = None) -> Tensor:
    """|P| + sum_s |T_s| gain_s or `_together`, of the change times a weight <= 1; small terms by Frobenius norms."""
    parts = {s: (t if weight is None else t * weight).flatten(1) for s, t in change.parts.items()}
    rough = {s: _rough_norm(t) * gains[s] for s, t in parts.items()}
    total, left, major = change.error, _MINOR, dict[int, Tensor]()
    if 0 in parts:
        major[0] = _norm(parts[0], steps)
    exact = max(float(major[0]), 1e-300) if major else 1e-300
    for s in sorted((s for s in rough if s), key=lambda s: float(rough[s])):
        share = float(rough[s]) / exact
        if share <= left:
            total, left = total + rough[s], left - share
        else:
            small = min(parts[s].shape) < _LARGE
            major[s] = spectral_above(parts[s], _SCALE_STEPS) if small else _rough_norm(parts[s])
    flat = {s: parts[s] for s in major}
    return (total + _together(flat, major, gains, steps)) * (1 + ROUNDINGS_512)


def _rough_norm(matrix: Float64[Tensor, "m n"]) -> Tensor:
    """min(|M|_F, (|M|_1 |M|_inf)^(1/2)) >= |M|_2; the second is the norm itself where M is diagonal."""
    size = matrix.abs()
    sums = size.sum(0).amax().sqrt() * size.sum(1).amax().sqrt() * (1 + gamma(sum(matrix.shape) + 8))
    return torch.minimum(norm_up(matrix.flatten(), 1), sums)


def _norm(matrix: Float64[Tensor, "... m n"], steps: int) -> Tensor:
    """|M|_2 from above, by squarings or, for a single large matrix, by a guess that is proven."""
    if matrix.ndim > 2 or min(matrix.shape) < _LARGE or not bool(torch.isfinite(matrix).all()):
        return spectral_above(matrix, steps)
    prove = _LAST_PROVEN if steps == LAST_STEPS else _PROVEN
    return exp_of(prove.enclose(matrix[None, None]).log_upper[0], 1.0)


def group_gains(change: Change, gains: Gains, groups: int) -> Tensor:
    """The gain of each of the groups that the entries fall into, one after the other; as `whole_gain` for each."""
    parts = {s: t.reshape(len(t), groups, -1) for s, t in change.parts.items()}
    rough = {s: norm_up(t.transpose(0, 1), 2) for s, t in parts.items()}
    size = sum((norm * gains[s] for s, norm in rough.items()), torch.zeros_like(change.error))
    major = {s: t.transpose(0, 1) for s, t in parts.items() if bool((rough[s] * gains[s] > _MINOR * size).any())}
    norms = {s: spectral_above(t, STEPS) for s, t in major.items()}
    minor = sum((rough[s] * gains[s] for s in parts if s not in major), change.error.expand(groups))
    return (minor + _together(major, norms, gains, STEPS)) * (1 + ROUNDINGS_512)


def _together(parts: Mapping[int, Tensor], norms: Mapping[int, Tensor], gains: Gains, steps: int) -> Tensor:
    """An upper bound of |sum_s T_s w_s| for |w_s| <= gain_s, from upper bounds of |T_s|; for a batch of such sums.

    sum_s T_s w_s = [T_s / c_s] (c_s w_s) <= |[T_s / c_s]| (sum_s c_s^2 gain_s^2)^(1/2) for all c_s > 0. With
    c_s^2 = |T_s| / gain_s both factors are at most the root of sum_s |T_s| gain_s, and less where the T_s move
    different directions. Any number near |T_s| will do for c_s.
    """
    zero = next(iter(gains.values())).new_zeros(())
    terms = {s: norm * gains[s] for s, norm in norms.items()}
    apart = sum(terms.values(), zero)
    # At least the first term is left, whose norm is a good one, so there may be nothing to gain.
    if not bool((apart > (1 + _MINOR) * terms.get(0, torch.zeros_like(apart))).any()):
        return apart
    sizes = {s: _guess_norm(t, norms[s]) for s, t in parts.items()}
    # A term of zero adds nothing, whatever its scale.
    scales = {s: torch.where(terms[s] > 0, (gains[s] / sizes[s]).sqrt(), 0.0) for s in parts}
    scaled = [t * scales[s][..., None, None] for s, t in parts.items()]
    joint = torch.cat(scaled, -2)
    # Scales are rounded: relative to all entries, which are at most the root of the rank times the norm.
    slack = 1 + ROUNDINGS_32 * joint.shape[-1] ** 0.5
    weight = sum((sizes[s] * gains[s] for s in parts), zero)
    return torch.minimum(apart, _norm(joint, steps) * slack * (weight * _ULPS).sqrt())


def _guess_norm(matrix: Float64[Tensor, "... m n"], above: Tensor) -> Tensor:
    """About |M|_2: for one large matrix by a few steps of power iteration, otherwise the bound that is known."""
    if matrix.ndim > 2 or min(matrix.shape) < _LARGE:
        return above
    vector, size = matrix[torch.linalg.vector_norm(matrix, dim=1).argmax()], above
    for _ in range(_GUESSES):
        vector = matrix.mT @ (matrix @ (vector / torch.linalg.vector_norm(vector).clamp(min=1e-300)))
        size = torch.linalg.vector_norm(vector).sqrt()
    return torch.where((size > 0) & (size < above), size, above)
