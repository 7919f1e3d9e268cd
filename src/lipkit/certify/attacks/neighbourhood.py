"""The set an attack may search: a ball around each input, cut by the box of valid inputs."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError

NORMS = (1.0, 2.0, math.inf)
# Halvings of [0, 1]: after them the two ends are neighbouring float64 numbers.
_HALVINGS = 54


def lengths(offsets: Float64[Tensor, "n ..."], norm: float) -> Float64[Tensor, " n"]:
    """||offset||_norm of each sample, rounded up: never below the true length."""
    flat = offsets.flatten(1)
    # A sum of d terms and a root; the difference the offset came from was rounded once more.
    return torch.linalg.vector_norm(flat, ord=norm, dim=1) * (1 + _slack(flat.shape[1]))


@final
@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """{z : ||z - x||_norm <= radius and low <= z <= high}, one set for each sample x of a batch.

    The set is about the numbers as stored: `project` returns a tensor of the inputs' dtype whose true distance to the
    inputs, and therefore also the one computed in float64, is at most `radius`.
    """

    center: Float[Tensor, "samples ..."]
    radius: Float64[Tensor, " radii"]
    norm: float = 2.0
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
        return Neighbourhood(self.center[rows], self.radius[rows], self.norm, self.low, self.high)

    def project(self, points: Tensor) -> Tensor:
        """The nearest point of the set in l2, then rounded towards the center.

            l2    z = clip(x + s d), the largest s <= 1 that fits      (d = point - x)
            l1    z = clip(x + sign(d) max(|d| - t, 0)), the smallest t >= 0 that fits
            linf  z = clip(x + clip(d, -radius, radius))

        Optimality: these minimise the Lagrangian and are monotone in s and t; where a box cuts the ball, they are found
        by bisection that keeps the end inside, elsewhere in closed form. Rounding goes towards x in every entry, so it
        can only shorten.
        Cost: a few passes; a sort in l1; 54 passes for samples where a box cuts the ball.
        """
        x = self.center.to(torch.float64)
        offset = self._nearest(x, points.to(torch.float64) - x)
        return self._inward(x, offset)

    def contains(self, points: Tensor) -> Bool[Tensor, " n"]:
        """Which samples are in their set, by the length computed in float64 from the stored numbers."""
        offset = points.to(torch.float64) - self.center.to(torch.float64)
        near = torch.linalg.vector_norm(offset.flatten(1), ord=self.norm, dim=1) <= self.radius
        return near & ((points >= self.low) & (points <= self.high)).flatten(1).all(1)

    def distance(self, points: Tensor) -> Float64[Tensor, " n"]:
        """||point - x|| of each sample, rounded up."""
        return lengths(points.to(torch.float64) - self.center.to(torch.float64), self.norm)

    @property
    def _room(self) -> Float64[Tensor, " n"]:
        # What `lengths` adds is kept free, so that a length that fits as computed fits in truth.
        return self.radius * (1 - 4 * _slack(self.center[0].numel() if len(self.center) else 1))

    def _nearest(self, x: Tensor, offset: Tensor) -> Tensor:
        """The offset of the nearest point, in float64 and inside the smaller radius `_room`."""
        room = per_sample(self._room, offset)
        if self.norm == math.inf:
            return torch.minimum(torch.maximum(offset, -room), room).clamp(self.low - x, self.high - x)
        clipped = offset.clamp(self.low - x, self.high - x)
        plain = self._without_box(offset)
        in_box = (plain == plain.clamp(self.low - x, self.high - x)).flatten(1).all(1)
        clipped = torch.where(per_sample(in_box, offset), plain, clipped)
        outside = torch.linalg.vector_norm(clipped.flatten(1), ord=self.norm, dim=1) > self._room
        if not bool(outside.any()):
            return clipped
        rows = outside.nonzero().squeeze(1)
        found = clipped.clone()
        found[rows] = self.take(rows)._searched(x[rows], offset[rows])
        return found

    def _without_box(self, offset: Tensor) -> Tensor:
        """The nearest point of the ball alone: scaled in l2, by a threshold common to all entries in l1."""
        flat = offset.flatten(1)
        length = torch.linalg.vector_norm(flat, ord=self.norm, dim=1)
        fits = length <= self._room
        if bool(fits.all()):
            return offset
        if self.norm == 1.0:
            size = flat.abs()
            ranked = size.sort(1, descending=True).values
            # With k entries kept, t = (their sum - radius)/k; as many are kept as stay above their t.
            thresholds = (ranked.cumsum(1) - self._room[:, None]) / torch.arange(1, 1 + flat.shape[1]).to(flat)
            kept = (ranked > thresholds).sum(1, keepdim=True).clamp(min=1)
            flat = flat.sign() * (size - thresholds.gather(1, kept - 1)).clamp(min=0)
            length = torch.linalg.vector_norm(flat, ord=1.0, dim=1)
        tiny = torch.finfo(torch.float64).tiny
        scale = (self._room / length.clamp(min=tiny)).clamp(max=1) * (1 - 4 * _slack(flat.shape[1]))
        return torch.where(per_sample(fits, offset), offset, flat.view_as(offset) * per_sample(scale, offset))

    def _searched(self, x: Tensor, offset: Tensor) -> Tensor:
        size = offset.abs()
        top = per_sample(size.flatten(1).amax(1), offset)

        def at(share: Tensor) -> Tensor:
            scale = per_sample(share, offset)
            moved = offset * scale if self.norm == 2.0 else offset.sign() * (size - top * (1 - scale)).clamp(min=0)
            return moved.clamp(self.low - x, self.high - x)

        inside, outside = torch.zeros_like(self.radius), torch.ones_like(self.radius)
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            fits = torch.linalg.vector_norm(at(middle).flatten(1), ord=self.norm, dim=1) <= self._room
            inside, outside = torch.where(fits, middle, inside), torch.where(fits, outside, middle)
        return at(inside)

    def _inward(self, x: Tensor, offset: Tensor) -> Tensor:
        """x + offset in the inputs' dtype, no entry farther from x than its offset says."""
        stored = (x + offset).to(self.center.dtype)
        too_far = (stored.to(torch.float64) - x).abs() > offset.abs()
        stored = torch.where(too_far, torch.nextafter(stored, self.center), stored)
        # x + (low - x) may be rounded past low. The center is in the box, so this too goes towards it.
        beyond = (stored.to(torch.float64) < self.low) | (stored.to(torch.float64) > self.high)
        return torch.where(beyond, torch.nextafter(stored, self.center), stored)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """One value a sample, shaped to multiply samples."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _slack(size: int) -> float:
    """Relative error of a length of `size` entries in float64, generously: sum, root, and the difference before it."""
    return (size + 8) * 2.0**-52
