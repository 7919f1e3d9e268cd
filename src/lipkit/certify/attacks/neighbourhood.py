"""The set an attack may search: a ball around each input, cut by the box of valid inputs."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lipkit.certify.attacks._power_of_two_units import exponents, length_slack, lengths, round_inward, shift_exponents
from lipkit.errors import ArgumentError, ShapeError

NORMS = (1.0, 2.0, math.inf)
# Halvings of the bit patterns of 0 to 2^501: after them the two ends are neighbouring float64 numbers.
_HALVINGS = 63
# A point farther away than so many doublings of the radius is moved to that distance, in the same direction.
_FAR = 500


@final
@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """{z : ||z - x||_norm <= radius and low <= z <= high}, one set for each sample x of a batch.

    The set is about the numbers as stored: `project` returns a tensor of the inputs' dtype whose true distance to the
    inputs, and therefore also the one computed in float64, is at most `radius`.
    """

    center: Float[Tensor, "samples ..."]
    radius: Float64[Tensor, " radii"]
    p: float = 2.0
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.radius.shape != self.center.shape[:1]:
            raise ShapeError(f"One radius a sample is needed, got {tuple(self.radius.shape)} for {len(self.center)}.")
        if not bool(((self.radius >= 0) & (self.radius < math.inf)).all()):
            raise ArgumentError(f"A radius is a finite number >= 0, got {self.radius.tolist()[:8]}.")
        if not bool(torch.isfinite(self.center).all()):
            raise ArgumentError("An attack starts from finite inputs; these have NaN or infinite entries.")
        if not bool(((self.center >= self.low) & (self.center <= self.high)).all()):
            seen = (self.center.min().item(), self.center.max().item())
            raise ArgumentError(
                f"The inputs lie in [{seen[0]:g}, {seen[1]:g}], outside of the box [{self.low:g}, {self.high:g}]; "
                "give the box in the units of the inputs, with the normalisation inside the model."
            )

    def take(self, rows: Tensor) -> "Neighbourhood":
        """The sets of some samples, by index or mask."""
        return Neighbourhood(self.center[rows], self.radius[rows], self.p, self.low, self.high)

    def project(self, points: Tensor) -> Tensor:
        """The nearest point of the set in l2, then rounded towards the center.

            l2    z = clip(x + s d), the largest s <= 1 that fits      (d = point - x)
            l1    z = clip(x + sign(d) max(|d| - t, 0)), the smallest t >= 0 that fits
            linf  z = clip(x + clip(d, -radius, radius))

        Optimality: these minimise the Lagrangian and are monotone in s and t; where a box cuts the ball, they are found
        by bisection that keeps the end inside, elsewhere in closed form. Rounding goes towards x in every entry, so it
        can only shorten.
        Cost: a few passes; a sort in l1; 63 passes for samples where a box cuts the ball.
        """
        if not points.numel():
            return self.center
        x = self.center.to(torch.float64)
        largest = torch.finfo(torch.float64).max
        offset = (points.to(torch.float64) - x).clamp(-largest, largest)
        unit = exponents(self.radius)
        size = exponents(offset.abs().flatten(1).amax(1))
        near = _Unit(
            shift_exponents(offset, -torch.maximum(unit, size - _FAR)),
            shift_exponents(self.radius, -unit) * (1 - 4 * length_slack(offset[0].numel())),
            shift_exponents(self.low - x, -unit),
            shift_exponents(self.high - x, -unit),
            self.p,
        )
        return self._inward(x, round_inward(near.nearest(), unit))

    def contains(self, points: Tensor) -> Bool[Tensor, " n"]:
        """Whether each sample is in its set, by the length computed in float64 from the stored numbers."""
        unit = exponents(self.radius)
        offset = shift_exponents(points.to(torch.float64) - self.center.to(torch.float64), -unit)
        near = torch.linalg.vector_norm(offset.flatten(1), ord=self.p, dim=1) <= shift_exponents(self.radius, -unit)
        return near & ((points >= self.low) & (points <= self.high)).flatten(1).all(1)

    def distance(self, points: Tensor) -> Float64[Tensor, " n"]:
        """||point - x|| of each sample, rounded up."""
        return lengths(points.to(torch.float64) - self.center.to(torch.float64), self.p)

    def _inward(self, x: Tensor, offset: Tensor) -> Tensor:
        """x + offset in the inputs' dtype, no entry farther from x than its offset says."""
        stored = (x + offset).to(self.center.dtype)
        too_far = (stored.to(torch.float64) - x).abs() > offset.abs()
        stored = torch.where(too_far, torch.nextafter(stored, self.center), stored)
        # x + (low - x) may be rounded past low. The center is in the box, so this too goes towards it.
        beyond = (stored.to(torch.float64) < self.low) | (stored.to(torch.float64) > self.high)
        return torch.where(beyond, torch.nextafter(stored, self.center), stored)


@final
@dataclass(frozen=True, eq=False)
class _Unit:
    """Offsets from the centers in units in which every radius is between 1/2 and 1, or 0.

    `room` is the radius less what lengths are rounded by, so that a length that fits as computed fits in truth; `low`
    and `high` are the faces of the box seen from the center.
    """

    offset: Float64[Tensor, "samples ..."]
    room: Float64[Tensor, " samples"]
    low: Float64[Tensor, "samples ..."]
    high: Float64[Tensor, "samples ..."]
    p: float

    def nearest(self) -> Float64[Tensor, "samples ..."]:
        """The offset of the nearest point."""
        if self.p == math.inf:
            room = per_sample(self.room, self.offset)
            return torch.minimum(torch.maximum(self.offset, -room), room).clamp(self.low, self.high)
        plain = self._without_box()
        in_box = (plain == plain.clamp(self.low, self.high)).flatten(1).all(1)
        found = torch.where(per_sample(in_box, plain), plain, self.offset.clamp(self.low, self.high))
        outside = ~self._fits(found)
        if bool(outside.any()):
            found[outside] = self._take(outside)._bisect()
        return found

    def _take(self, rows: Tensor) -> "_Unit":
        return _Unit(self.offset[rows], self.room[rows], self.low[rows], self.high[rows], self.p)

    def _fits(self, offset: Tensor) -> Bool[Tensor, " samples"]:
        return torch.linalg.vector_norm(offset.flatten(1), ord=self.p, dim=1) <= self.room

    def _without_box(self) -> Tensor:
        """The nearest point of the ball alone: scaled in l2, by a threshold common to all entries in l1."""
        fits = self._fits(self.offset)
        if bool(fits.all()):
            return self.offset
        flat = self.offset.flatten(1)
        if self.p == 1.0:
            size = flat.abs()
            ranked = size.sort(1, descending=True).values
            # With k entries kept, t = (their sum - radius)/k; as many are kept as stay above their t.
            thresholds = (ranked.cumsum(1) - self.room[:, None]) / torch.arange(1, 1 + flat.shape[1]).to(flat)
            kept = (ranked > thresholds).sum(1, keepdim=True).clamp(min=1)
            flat = flat.sign() * (size - thresholds.gather(1, kept - 1)).clamp(min=0)
        length = torch.linalg.vector_norm(flat, ord=self.p, dim=1)
        scale = (self.room / length.masked_fill(length == 0, 1.0)).clamp(max=1) * (1 - 4 * length_slack(flat.shape[1]))
        inside = flat.view_as(self.offset) * per_sample(scale, self.offset)
        return torch.where(per_sample(fits, inside), self.offset, inside)

    def _bisect(self) -> Tensor:
        """The nearest point by bisection: in l2 of the share s in [0, 1], in l1 of the threshold t in [0, max |d|]."""
        size = self.offset.abs()

        def at(place: Tensor) -> Tensor:
            # Bit patterns of floats >= 0 are in their order, so small shares are found as precisely as large ones.
            value = per_sample(place.view(torch.float64), size)
            moved = self.offset * value if self.p == 2.0 else self.offset.sign() * (size - value).clamp(min=0)
            return moved.clamp(self.low, self.high)

        nothing, everything = torch.zeros_like(self.room), torch.ones_like(self.room)
        ends = (nothing, everything) if self.p == 2.0 else (size.flatten(1).amax(1), nothing)
        inside, outside = (end.view(torch.int64) for end in ends)
        for _ in range(_HALVINGS):
            middle = torch.div(inside + outside, 2, rounding_mode="floor")
            fits = self._fits(at(middle))
            inside, outside = torch.where(fits, middle, inside), torch.where(fits, outside, middle)
        return at(inside)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """One value a sample, shaped to multiply samples."""
    return values.view(-1, *[1] * (like.ndim - 1))
