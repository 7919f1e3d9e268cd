"""Linear pieces of a network: polytopes on which it is affine, found one neuron at a time, with proofs of emptiness."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.jacobian_intervals import Span, scaled
from lipkit.bounds.local.measured_network import Affine, MeasuredNetwork
from lipkit.bounds.local.ranges import middle
from lipkit.norms import dual_exponent
from lipkit.regions import Ball, Region
from lipkit.rounding.float64 import gamma, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_16
from lipkit.trace import Reach

_ULPS = ROUNDINGS_16
_UNDERFLOW = 1e-290
# Constraints that the optimiser is asked to satisfy with room to spare, relative to the size of the region.
_MARGIN = 1e-7


@final
@dataclass(frozen=True, eq=False)
class HalfSpaces:
    """The points x of a region with normals x + offsets >= 0; offsets are rounded up, so the set is never too small."""

    region: Region
    reach: Reach
    normals: Float64[Tensor, "count in"]
    offsets: Float64[Tensor, " count"]

    def cut(self, normal: Float64[Tensor, " in"], offset: Float64[Tensor, ""]) -> "HalfSpaces":
        """The part with one more constraint."""
        normals, offsets = torch.cat([self.normals, normal[None]]), torch.cat([self.offsets, offset[None]])
        return HalfSpaces(self.region, self.reach, normals, offsets)

    def highest(self, normal: Float64[Tensor, " in"], offset: Float64[Tensor, ""]) -> float:
        """An upper bound of normal x + offset on the set; -inf if it is empty.

        For any multipliers m >= 0 the maximum over the region of (normal + m normals) x + offset + m offsets is one: a
        solver proposes m, and only this formula is believed.
        """
        plain = self._over_region(normal, offset)
        if not len(self.offsets):
            return plain
        multipliers = self._propose(normal)
        m = multipliers.clamp(min=0)
        size = m.abs() @ self.normals.abs() + normal.abs()
        mixed = normal + m @ self.normals
        shift = offset + m @ self.offsets
        lost = gamma(len(m) + 8) * (size @ self._far() + offset.abs() + m @ self.offsets.abs())
        return min(plain, self._over_region(mixed, shift + lost))

    def point(self) -> Float64[Tensor, " in"] | None:
        """A point deep inside, if the optimiser finds one; only a proposal."""
        mid, width = middle(self.reach.low.flatten(), self.reach.high.flatten())
        lengths = torch.linalg.vector_norm(self.normals, dim=1)
        size = len(mid)
        # The center of a largest ball: maximise r with normals x - r lengths + offsets >= 0 and x inside by r.
        left = np.concatenate([-self.normals.numpy(force=True), lengths.numpy(force=True)[:, None]], axis=1)
        eye = np.eye(size)
        ones = np.ones((size, 1))
        box = np.concatenate([np.concatenate([eye, ones], axis=1), np.concatenate([-eye, ones], axis=1)])
        ends = torch.cat([mid + width, width - mid]).numpy(force=True)
        found = scipy.optimize.linprog(
            np.append(np.zeros(size), -1.0),
            np.concatenate([left, box]),
            np.concatenate([self.offsets.numpy(force=True), ends]),
            bounds=[(None, None)] * size + [(0, None)],
        )
        return torch.from_numpy(found.x[:size]).to(mid) if found.status == 0 else None

    def _propose(self, normal: Tensor) -> Tensor:
        mid, width = middle(self.reach.low.flatten(), self.reach.high.flatten())
        scale = float(width.max())
        result = scipy.optimize.linprog(
            -normal.numpy(force=True),
            -self.normals.numpy(force=True),
            self.offsets.numpy(force=True),
            bounds=torch.stack([mid - width, mid + width], dim=1).numpy(force=True),
        )
        if result.status == 0:
            return -torch.from_numpy(result.ineqlin.marginals).to(normal)
        # Perhaps empty: how far must all constraints be loosened? The multipliers of that problem prove it.
        loosened = scipy.optimize.linprog(
            np.append(np.zeros(len(mid)), 1.0),
            np.concatenate([-self.normals.numpy(force=True), -np.ones((len(self.offsets), 1))], axis=1),
            self.offsets.numpy(force=True) - _MARGIN * scale * 1e-3,
            bounds=[*torch.stack([mid - width, mid + width], dim=1).tolist(), (0, None)],
        )
        if loosened.status != 0:
            return torch.zeros_like(self.offsets)
        # Scaled up: a contradiction times a large number beats any objective.
        return -torch.from_numpy(loosened.ineqlin.marginals).to(normal) * 1e6 * max(1.0, float(normal.abs().sum()))

    def _far(self) -> Tensor:
        return torch.maximum(self.reach.low.abs(), self.reach.high.abs()).flatten()

    def _over_region(self, normal: Tensor, offset: Tensor) -> float:
        mid, width = middle(self.reach.low.flatten(), self.reach.high.flatten())
        slack = gamma(len(mid) + 16)
        center = self.reach.center.flatten()
        by_box = normal @ mid + offset + normal.abs() @ width
        found = by_box + slack * (normal.abs() @ (mid.abs() + width) + offset.abs())
        if isinstance(self.region, Ball):
            length = vector_norms(normal[None], dual_exponent(self.region.p))[0] * self.region.radius
            by_ball = normal @ center + offset + length
            by_ball = by_ball + slack * (normal.abs() @ center.abs() + offset.abs() + length)
            found = torch.minimum(found, by_ball)
        value = float(found)
        return value if not math.isnan(value) else math.inf


def row_span(row: Affine, ys: Mapping[int, Span]) -> Span:
    """z as a function of x: spans over the unit vectors of the input and, last, the constant part."""
    first = next(iter(ys.values()))
    shape = (len(first.mid), *row.shift.shape)
    mid, width = first.mid.new_zeros(shape), first.mid.new_zeros(shape)
    mid[-1], width[-1] = row.shift, row.error
    z = Span(mid, width)
    for j, block in row.blocks.items():
        lost = row.slack() * block.stages.apply(ys[j].mid.abs() + ys[j].width)
        spread = (block.tight.apply(ys[j].width) + lost) * (1 + 4 * row.slack()) + _UNDERFLOW
        z = z.plus(Span(block.op.apply(ys[j].mid), spread))
    return z


def piece_span(z: Span, slopes: Float64[Tensor, "..."], shifts: Float64[Tensor, "..."]) -> Span:
    """y = slopes z + shifts, for one linear piece of the node; the shifts carry a few roundings."""
    y = scaled(z, slopes, slopes)
    constant = y.mid[-1] + shifts
    width = y.width[-1] + _ULPS * (constant.abs() + 4 * shifts.abs())
    return Span(torch.cat([y.mid[:-1], constant[None]]), torch.cat([y.width[:-1], width[None]]))


def input_span(found: MeasuredNetwork) -> Span:
    """y_0 = x: the unit vectors, and no constant part."""
    size = math.prod(found.network.source)
    eye = torch.eye(size, dtype=torch.float64, device=found.device)
    units = torch.cat([eye, torch.zeros(1, size).to(eye)]).reshape(-1, *found.network.source)
    return Span(units, torch.zeros_like(units))


def error_of(z: Span, reach: Reach) -> Float64[Tensor, " entries"]:
    """How far z(x) can lie from its midpoint's affine function, for x in the box of `reach`."""
    widths = z.width.flatten(1)
    far = torch.maximum(reach.low.abs(), reach.high.abs()).flatten()
    return (far @ widths[:-1] + widths[-1]) * (1 + gamma(len(widths) + 8))
