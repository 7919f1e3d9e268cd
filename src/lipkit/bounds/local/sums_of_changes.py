"""Differences of two values of a network as sums of linear images of bounded vectors, and how large they can be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.rounding.float64 import norm_up
from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_512
from lipkit.trace.nodes._small_norms import spectral_above

Gains = Mapping[int, Tensor]
_ULPS = 1 + ROUNDINGS_32
# The share of a norm that terms measured by their Frobenius norms may add to it.
_MINOR = 1e-2
# Squarings behind a norm: n^(1/64) for rank n, 10 % for a flat spectrum of 500; behind that of a result 0.3 %.
STEPS, LAST_STEPS = 5, 11
# The same behind the norm of one of several terms, which is a scale and no more where all are measured together.
_SCALE_STEPS = 3


@final
@dataclass(frozen=True, eq=False)
class Change:
    """A difference of two values of one tensor as sum_s T_s w_s + e, with |w_s| <= gain_s and |e| <= error, all in
    units of the difference of the inputs; w_0 is that of the inputs itself. T_s is stored as (columns, *shape).
    """

    parts: dict[int, Tensor]
    error: Tensor

    def mass(self, gains: Gains) -> Tensor:
        """sum_s |T_s|_F gain_s: what rounding errors are relative to."""
        return sum((norm_up(t.flatten(), 1) * gains[s] for s, t in self.parts.items()), torch.zeros_like(self.error))


def whole_gain(change: Change, gains: Gains, steps: int = STEPS, weight: Tensor | None = None) -> Tensor:
    """|P| + sum_s |T_s| gain_s or `_together`, of the change times a weight <= 1; small terms by Frobenius norms."""
    parts = change.parts if weight is None else {s: t * weight for s, t in change.parts.items()}
    rough = {s: norm_up(t.flatten(), 1) * gains[s] for s, t in parts.items()}
    total, left, major = change.error, _MINOR, dict[int, Tensor]()
    if 0 in parts:
        major[0] = spectral_above(parts[0].flatten(1), steps)
    exact = max(float(major[0]), 1e-300) if major else 1e-300
    for s in sorted((s for s in rough if s), key=lambda s: float(rough[s])):
        share = float(rough[s]) / exact
        if share <= left:
            total, left = total + rough[s], left - share
        else:
            major[s] = spectral_above(parts[s].flatten(1), _SCALE_STEPS)
    flat = {s: parts[s].flatten(1) for s in major}
    return (total + _together(flat, major, gains, steps)) * (1 + ROUNDINGS_512)


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
    different directions.
    """
    terms = {s: norm * gains[s] for s, norm in norms.items()}
    apart = sum(terms.values(), next(iter(gains.values())).new_zeros(()))
    # At least the first term is left, whose norm is a good one, so there may be nothing to gain.
    if not bool((apart > (1 + _MINOR) * terms.get(0, torch.zeros_like(apart))).any()):
        return apart
    # A term of zero adds nothing, whatever its scale.
    scales = {s: torch.where(terms[s] > 0, (gains[s] / norms[s]).sqrt(), 0.0) for s in parts}
    scaled = [t * scales[s][..., None, None] for s, t in parts.items()]
    joint = torch.cat(scaled, -2)
    # Scales are rounded: relative to all entries, which are at most the root of the rank times the norm.
    slack = 1 + ROUNDINGS_32 * joint.shape[-1] ** 0.5
    return torch.minimum(apart, spectral_above(joint, steps) * slack * (apart * _ULPS).sqrt())
