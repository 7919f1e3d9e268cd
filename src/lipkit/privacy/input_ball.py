"""The records as a private training sees them: moved by a public center, and inside a ball."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import Shape

# Records beyond the ball end this far inside it, relative to the radius, so that no rounding takes them out again.
_INSIDE = {torch.float32: 2.0**-20, torch.float64: 2.0**-44}


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """x -> (x - center) min(1, radius / |x - center|_2), record by record: the projection onto a public ball.

    A bound of one record's gradient needs a bound of the record. Center and radius are public numbers: taken from the
    private records they would be a release that nobody paid for.

    Args:
        shape: Shape of one record, without batch axis.
        radius: The largest Euclidean norm of a record, a finite number > 0.
        center: What is subtracted first, a number or a tensor that broadcasts to `shape`.

    Guarantee: the norm of every result is at most `radius`, in real arithmetic, for float32 and float64. Records with
    NaN or infinite entries are refused. Cost: one norm a record, in float64.
    """

    shape: Shape
    radius: float
    center: float | Float[Tensor, "..."] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ArgumentError(f"Inputs need a finite radius > 0, got {self.radius}; a gradient has no bound without.")
        if any(n < 1 for n in self.shape):
            raise ShapeError(f"A record has at least one entry on every axis, got the shape {self.shape}.")
        center = torch.as_tensor(self.center)
        if not bool(torch.isfinite(center).all()):
            raise ArgumentError("The center of Inputs must be finite; this one has NaN or infinite entries.")
        if center.ndim > len(self.shape) or center.expand(self.shape).shape != self.shape:
            raise ShapeError(f"The center must broadcast to a record of {self.shape}, got {tuple(center.shape)}.")

    def __call__(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The records of a batch, moved and projected."""
        if tuple(x.shape[1:]) != self.shape:
            sides = ", ".join(map(str, self.shape))
            raise ShapeError(
                f"Records have shape (batch, {sides}), got {tuple(x.shape)}; give Inputs the shape of one record, or "
                f"write x.reshape(-1, {sides})."
            )
        if x.dtype not in _INSIDE:
            raise ArgumentError(f"Records must be float32 or float64, got {x.dtype}; convert them with .float().")
        if not bool(torch.isfinite(x).all()):
            rows = (~torch.isfinite(x.flatten(1)).all(1)).nonzero().flatten().tolist()
            raise NonFiniteError(
                f"Record {rows[0]} of this batch has NaN or infinite entries ({len(rows)} such records); remove them "
                "by a rule that looks at one record at a time."
            )
        moved = x - torch.as_tensor(self.center).to(x)
        wide = moved.double().flatten(1)
        # In units of the largest entry: squares of large numbers leave the range of floats.
        largest = wide.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        norms = torch.linalg.vector_norm(wide / largest, dim=1, keepdim=True) * largest
        limit = self.radius * (1 - _INSIDE[x.dtype])
        # NaN where the center took a record out of the range of its type: refused below.
        factor = torch.where(norms > limit, limit / norms, 1.0)
        inside = (wide * factor).to(x.dtype)
        if not bool(torch.isfinite(inside).all()):
            raise NonFiniteError("A record is too large to be moved by the center; scale the records down first.")
        return inside.reshape(x.shape)
