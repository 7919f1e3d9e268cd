"""Walks along the gradient to a level set, from outside, that never step across it."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.nn import frozen
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192, ULP
from lipkit.sdf._base import Field, check_points, constant_of
from lipkit.sdf.given_numbers import as_number, as_whole
from lipkit.sdf.gradients_allowed import gradients_allowed
from lipkit.sdf.rays.free_radius import free_radius


@final
@dataclass(frozen=True, eq=False)
class Walk:
    """Steps along the gradient towards the set where f = `level`, for points below the level.

        z <- P(z + s g/|g|),   g = grad f(z),   s = min(eta rate / (steps |g|), 1/K) (level - f(z))+,

    where P clips to the box and eta is 1, or one random number in [0, 1] for each point if a generator is given. The
    first term of the minimum divides by |g| twice in all, so where f is affine each step shrinks the gap level - f by
    the factor 1 - eta rate/steps, however small the slope. The second one is what never crosses. Points at or above the
    level stay where they are, as do points where the gradient is zero.

    Guarantee: for a `Field`, f(z) <= level at the start implies f <= level after every step, rounding included: a step
    has length at most (level - f(z))/K, and P brings no point farther from z, which lies in the box.
    Cost: one value and one gradient a step.
    Limits: where the gradient vanishes a walk ends early, so the gap may stay. With rate = 1 a share of about e^-eta of
    it is left; to come close to the level set take rate >= steps.
    Reference: Béthune 2024, section 5.2 and algorithm 6; the bound on the step is ours.

    Args:
        level: The value of f to walk to.
        steps: How many steps; with 0 the points are given back.
        rate: The share of the gap that all steps together would take at a constant speed.
        low: Lower ends of the box, one for all coordinates or one for each; points must start in the box.
        high: Upper ends of the box.
    """

    level: float
    steps: int = 16
    rate: float = 1.0
    low: float | Float[Tensor, "..."] | None = None
    high: float | Float[Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(as_number(self.level, "level")):
            raise ArgumentError(f"A level is a finite number, got {self.level}.")
        if as_whole(self.steps, "steps") < 0:
            raise ArgumentError(f"A walk has 0 steps or more, got {self.steps}.")
        if not 0 < as_number(self.rate, "rate") < math.inf:
            raise ArgumentError(f"A walk has a finite rate > 0, got {self.rate}.")

    def __call__(
        self, f: Field, z: Float[Tensor, "n d"], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "n d"]:
        """Walk from n points in float64, with the guarantee."""
        constant = constant_of(f)
        points = check_points(z, f.dim).detach()
        self._require_inside(points)
        shares = _shares(points, generator)
        for _ in range(self.steps):
            found = f.measure(points)
            gap = (self.level - found.value).clamp(min=0.0)
            room = free_radius(gap, found.error, constant)
            # Adding the step moves a point by half a unit of its last digits.
            rest = torch.linalg.vector_norm(points, dim=1) * ULP
            aim = (room * (1 - ROUNDINGS_8192) - rest).clamp(min=0.0)
            moved = self._moved(points, gap, f.gradient(points), aim, shares)
            # The proof rests on how far each point has really come, not on how the step was computed.
            length = vector_norms(moved - points, 2.0) * (1 + ROUNDINGS_8)
            points = torch.where((length <= room)[:, None], moved, points)
        return points

    def toward(
        self,
        model: nn.Module,
        z: Float[Tensor, "n ..."],
        constant: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n ..."]:
        """Walk from n inputs of any shape with a module, in the type of the inputs, as training does.

        The module has one output for each input, (n,) or (n, 1), that depends on this input alone, and a constant that
        the caller knows. Its weights are computed once and its parameters get no gradient.

        Guarantee: none; a step may cross by what rounding to the type of the inputs amounts to.
        """
        if not 0 < constant < math.inf:
            raise ArgumentError(f"A walk needs a finite constant > 0, got {constant}.")
        with gradients_allowed(model), frozen(model):
            points = z.detach().clone()
            self._require_inside(points)
            shares = _shares(points, generator)
            for _ in range(self.steps):
                start = points.requires_grad_()
                value = model(start)
                if value.numel() != len(z):
                    raise ShapeError(f"A walk needs one output for each of {len(z)} inputs, got {tuple(value.shape)}.")
                (gradient,) = torch.autograd.grad(value.sum(), start)
                gap = (self.level - value.detach().flatten()).to(z.dtype).clamp(min=0.0)
                points = self._moved(start.detach(), gap, gradient, gap / constant, shares)
        return points

    def _moved(self, points: Tensor, gap: Tensor, gradient: Tensor, room: Tensor, shares: Tensor) -> Tensor:
        slope = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
        flat = slope == 0
        slope = slope.masked_fill(flat, 1.0)
        length = torch.minimum(gap * (shares * (self.rate / self.steps)) / slope, room).masked_fill(flat, 0.0)
        sides = (len(points),) + (1,) * (points.ndim - 1)
        moved = self._clipped(points + gradient / slope.view(sides) * length.view(sides))
        if not bool(torch.isfinite(gap).all() & torch.isfinite(moved).all()):
            raise NonFiniteError("A walk met values or gradients that are NaN or infinite; check the function there.")
        return moved

    def _clipped(self, points: Tensor) -> Tensor:
        if self.low is not None:
            points = points.clamp(min=torch.as_tensor(self.low).to(points))
        if self.high is not None:
            points = points.clamp(max=torch.as_tensor(self.high).to(points))
        return points

    def _require_inside(self, points: Tensor) -> None:
        for end in (self.low, self.high):
            shape = tuple(torch.as_tensor(end).shape) if end is not None else ()
            if shape not in ((), tuple(points.shape[1:])):
                raise ShapeError(
                    f"A box has one end or one for each coordinate, {tuple(points.shape[1:])}, got {shape}."
                )
        if not bool((self._clipped(points) == points).all()):
            raise ArgumentError(
                "Some points start outside of the box, from where clipping may carry them across the level; clamp them "
                "to the box first, or leave it out."
            )


def _shares(points: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return points.new_ones(len(points))
    return torch.rand(len(points), generator=generator, device=generator.device, dtype=points.dtype).to(points.device)
