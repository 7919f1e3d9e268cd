"""Langevin samplers of energies that stay in the box: unadjusted, and adjusted by Metropolis and Hastings."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._seeds import normal
from lipkit.errors import ArgumentError
from lipkit.sdf.energies.energy import Energy
from lipkit.sdf.given_numbers import as_number, as_whole


@final
@dataclass(frozen=True)
class ULA:
    """Unadjusted Langevin: x <- R(x - step grad E(x) + sqrt(2 step) xi), xi standard normal, `steps` times.

    R reflects at the faces of the box as often as needed, so chains stay inside. Reflection leaves the even
    distribution as it is if E is constant: the density of a step from x to y is a sum over mirror images of y, and a
    mirror image of y is as far from x as the same image of x is from y. So the faces add no bias of their own there.

    Guarantee: chains stay in the box; a step moves by at most step K beside its noise. So nothing diverges, however
    rough the energy. The distribution that it keeps is not p: for E = |x| on the line the variance is 2.73 with step
    0.5 and 2.12 with 0.1, where that of p is 2. `MALA` has no such bias. Choose steps of about 0.1 / K^2 to 0.5 / K^2.
    Cost: one gradient a step. Reference: Roberts, Tweedie 1996; the reflection is classical.

    Args:
        step: Length of a step of time.
        steps: Number of steps.
    """

    step: float
    steps: int

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, energy: Energy, starts: Float[Tensor, "n d"], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "n d"]:
        """The last points of chains, one for each start.

        Args:
            energy: The density.
            starts: Points of the box, such as `energy.draw_evenly(n)`.
            generator: Source of random numbers; None: torch's own.
        """
        points = energy.require_inside(starts).detach()
        low, high = (end.to(points.device) for end in (energy.low, energy.high))
        return self.walk(energy.field.gradient, points, low, high, generator)

    def walk(
        self,
        gradient: Callable[[Tensor], Tensor],
        points: Float[Tensor, "n d"],
        low: Float[Tensor, " d"],
        high: Float[Tensor, " d"],
        generator: torch.Generator | None,
    ) -> Float[Tensor, "n d"]:
        """The same for a gradient in any precision, such as that of a network in training."""
        for _ in range(self.steps):
            moved = points - self.step * gradient(points) + math.sqrt(2 * self.step) * normal(points, generator)
            points = reflect(moved, low, high)
        return points


@final
@dataclass(frozen=True)
class MALA:
    """Langevin steps that are accepted or refused by Metropolis and Hastings: p is what they keep, without bias.

        y = x - step grad E(x) + sqrt(2 step) xi;   x <- y with probability min(1, p(y) q(y, x) / (p(x) q(x, y))),
        log q(x, y) = -|y - x + step grad E(x)|^2 / (4 step) + constant.

    Outside the box p is zero, so a proposal there is refused and the chain stays where it is. It is not reflected:
    then q would be a sum over all mirror images. With refusals detailed balance p(x) a(x, y) = p(y) a(y, x) holds for
    all x, y in the box, a(x, y) the density of an accepted move, and what is refused stays at x; so p is invariant.

    Guarantee: chains stay in the box; p is invariant, in real arithmetic. How soon chains come near p is not proven: a
    chain rarely crosses a wide region where p is small. Cost: one gradient a step. Reference: Roberts, Tweedie 1996.

    Args:
        step: Length of a step of time; about 0.5 / K^2 to 2 / K^2 in few dimensions.
        steps: Number of steps.
    """

    step: float
    steps: int

    def __post_init__(self) -> None:
        _check(self)

    def __call__(
        self, energy: Energy, starts: Float[Tensor, "n d"], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "n d"]:
        """The last points of chains, one for each start.

        Args:
            energy: The density.
            starts: Points of the box, such as `energy.draw_evenly(n)`.
            generator: Source of random numbers; None: torch's own.
        """
        here = _value_and_drift(energy, energy.require_inside(starts).detach(), self.step)
        for _ in range(self.steps):
            proposed = here[2] + math.sqrt(2 * self.step) * normal(here[0], generator)
            inside = energy.contains(proposed)
            # What lies outside is refused below; its place is taken by a point where E is known to be finite.
            there = _value_and_drift(energy, torch.where(inside[:, None], proposed, here[0]), self.step)
            chance = _log_acceptance(here, there, self.step)
            device = chance.device if generator is None else generator.device
            luck = torch.rand(len(chance), generator=generator, dtype=torch.float64, device=device).to(chance.device)
            taken = inside & (luck.log() < chance)
            here = (
                torch.where(taken[:, None], there[0], here[0]),
                torch.where(taken, there[1], here[1]),
                torch.where(taken[:, None], there[2], here[2]),
            )
        return here[0]


# Points, their energies, and where their next proposals are centered.
_State = tuple[Tensor, Tensor, Tensor]


def _value_and_drift(energy: Energy, points: Float64[Tensor, "n d"], step: float) -> _State:
    with torch.inference_mode(False), torch.enable_grad():
        leaf = points.detach().clone().requires_grad_()
        values = energy.field(leaf)
        (slope,) = torch.autograd.grad(values.sum(), leaf)
    return points, values.detach(), points - step * slope


def _log_acceptance(here: _State, there: _State, step: float) -> Float64[Tensor, " n"]:
    """log of p(y) q(y, x) / (p(x) q(x, y)), x here and y there."""
    forth = (there[0] - here[2]).square().sum(1)
    back = (here[0] - there[2]).square().sum(1)
    return here[1] - there[1] + (forth - back) / (4 * step)


def reflect(points: Float[Tensor, "n d"], low: Float[Tensor, " d"], high: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """Points brought into a box by reflection at its faces, as often as needed."""
    sides = high - low
    along = torch.remainder(points - low, 2 * sides)
    # Rounding may leave the box by a unit in the last place.
    return torch.clamp(low + torch.minimum(along, 2 * sides - along), low, high)


def _check(sampler: ULA | MALA) -> None:
    if not 0 < as_number(sampler.step, "step") < math.inf:
        raise ArgumentError(f"{type(sampler).__name__} takes a step > 0, got {sampler.step}.")
    if as_whole(sampler.steps, "steps") < 1:
        raise ArgumentError(f"{type(sampler).__name__} takes at least 1 step, got steps={sampler.steps}.")
