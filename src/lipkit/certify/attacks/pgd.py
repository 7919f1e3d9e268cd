"""Projected gradient ascent with restarts, for whole batches."""

import math
from dataclasses import dataclass, field, fields
from typing import final

import torch
from torch import Tensor

from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks.attacked_model import Seen, Victim
from lipkit.certify.attacks.neighbourhood import Neighbourhood, per_sample
from lipkit.certify.attacks.objectives import CrossEntropy, Objective
from lipkit.certify.attacks.random_directions import Noise
from lipkit.certify.attacks.step_sizes import Halving, Schedule
from lipkit.errors import ArgumentError


@final
@dataclass(eq=False)
class Walk:
    """The samples still standing in a run; `rows` are their places in the whole batch."""

    near: Neighbourhood
    rows: Tensor
    point: Tensor
    previous: Tensor
    gradient: Tensor
    step: Tensor
    top: Tensor
    top_value: Tensor
    top_gradient: Tensor
    improved: Tensor

    @staticmethod
    def begin(near: Neighbourhood, rows: Tensor, start: Tensor, step: Tensor) -> "Walk":
        """A walk that has not looked yet."""
        worst = torch.full_like(step, -torch.inf)
        none = torch.zeros_like(rows)
        return Walk(
            near, rows, start, start, torch.zeros_like(start), step, start, worst, torch.zeros_like(start), none
        )

    def take(self, mask: Tensor) -> "Walk":
        """The walk of some of its samples."""
        near, *tensors = (getattr(self, one.name) for one in fields(self))
        return Walk(near.take(mask), *(tensor[mask] for tensor in tensors))

    def remember(self, seen: Seen) -> None:
        """Take the gradient here, and keep the point if its objective is the largest so far."""
        value = seen.value.to(torch.float64)
        better = value > self.top_value
        wide = per_sample(better, self.point)
        self.gradient = seen.gradient
        self.top = torch.where(wide, self.point, self.top)
        self.top_gradient = torch.where(wide, seen.gradient, self.top_gradient)
        self.top_value = torch.where(better, value, self.top_value)
        self.improved = self.improved + better

    def look_back(self, window: int, schedule: Schedule) -> None:
        """Samples that made too little progress in the last window go back to their best and halve their step."""
        stuck = self.improved < schedule.least(window)
        wide = per_sample(stuck, self.point)
        self.point = torch.where(wide, self.top, self.point)
        self.previous = torch.where(wide, self.top, self.previous)
        self.gradient = torch.where(wide, self.top_gradient, self.gradient)
        self.step = torch.where(stuck, self.step / 2, self.step)
        self.improved = torch.zeros_like(self.improved)

    def move(self, direction: Tensor, momentum: float) -> None:
        """One projected step, with a share of the previous move."""
        here = self.point.to(torch.float64)
        there = self.near.project(here + direction * per_sample(self.step, direction))
        if momentum:
            pull = (1 - momentum) * (there.to(torch.float64) - here)
            there = self.near.project(here + pull + momentum * (here - self.previous.to(torch.float64)))
        self.previous, self.point = self.point, there


@final
@dataclass(frozen=True)
class PGD(Attack):
    """Steps along the gradient of an objective, each projected to the ball and the box.

        eta_0 = eps u,   u random of length 1;      z_0 = P(x + eta_0)
        z_t+1 = P(z_t + step d(g)),   g = gradient of the objective at z_t,
        d(g) = g/||g||_2 in l2, sign(g) in linf, g/||g||_inf in l1 (P then keeps the largest entries);
        a random direction where g = 0.

    The point with the smallest margin is kept for every sample, over all steps, restarts and rounds of the objective,
    so more of any of them never hurts. Samples that are broken, or were wrong to begin with, are not run again.
    The thesis' setting is `PGD(eps, steps=40, step_size=0.2, schedule=Constant())`.

    Guarantee: the result is inside the ball (see `Attack`); finding nothing proves nothing.
    Cost: steps x restarts x rounds forward and backward passes over the samples that still stand.
    Reference: Madry et al. 2018; algorithm 1 of Delattre 2025.

    Args:
        steps: Gradient steps of one run.
        step_size: Length of the first step in the norm of the ball; the schedule chooses it if None.
        restarts: Number of runs from random starts.
        random_start: Whether a run starts at a random point of the ball, or at the input.
        objective: Number that the steps increase.
        schedule: Lengths of the steps.
    """

    steps: int = 40
    step_size: float | None = None
    restarts: int = 1
    random_start: bool = True
    objective: Objective = field(default_factory=CrossEntropy)
    schedule: Schedule = field(default_factory=Halving)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(number, int) and number >= 1 for number in (self.steps, self.restarts)):
            raise ArgumentError(
                f"PGD needs whole numbers, one step and one restart or more, got {self.steps} and {self.restarts}."
            )
        if self.step_size is not None and not (math.isfinite(self.step_size) and self.step_size > 0):
            raise ArgumentError(f"PGD needs a finite step_size > 0, got {self.step_size}; None chooses one.")
        if self.restarts > 1 and not self.random_start:
            raise ArgumentError(f"{self.restarts} restarts from one point are one run; set random_start=True.")

    @property
    def settings(self) -> str:
        """Steps, restarts and objective."""
        runs = f"{self.restarts} restart{'s' if self.restarts > 1 else ''}"
        return f"{self.steps} {self.schedule}, {runs}, {self.objective}"

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        best = near.center.clone()
        margin = victim.margin(best, labels)
        for round in range(self.objective.rounds(victim.classes(best[:1], labels[:1]))):
            for restart in range(self.restarts):
                rows = (margin >= 0).nonzero().squeeze(1)
                if not len(rows):
                    return best
                # Rounds of one restart share their noise: they differ by their target already.
                self._run(victim, near, labels, rows, Noise(seed, restart), round, best, margin)
        return best

    def _run(
        self,
        victim: Victim,
        near: Neighbourhood,
        labels: Tensor,
        rows: Tensor,
        noise: Noise,
        round: int,
        best: Tensor,
        margin: Tensor,
    ) -> None:
        """One walk of the samples in `rows`; writes better points into `best` and `margin`."""
        walk = Walk.begin(near.take(rows), rows, self._start(near, rows, noise), self._first_step(near.radius[rows]))
        window = self.schedule.window(self.steps)
        for step in range(self.steps + 1):
            seen = victim.look(walk.point, labels[walk.rows], self.objective, round)
            better = seen.margin < margin[walk.rows]
            best[walk.rows[better]] = walk.point[better]
            margin[walk.rows[better]] = seen.margin[better]
            standing = seen.margin >= 0
            if step == self.steps or not bool(standing.any()):
                return
            walk.remember(seen)
            if not bool(standing.all()):
                walk = walk.take(standing)
            if window is not None and step and step % window == 0:
                walk.look_back(window, self.schedule)
            walk.move(self._direction(walk, noise, near, step), self.schedule.momentum)

    def _start(self, near: Neighbourhood, rows: Tensor, noise: Noise) -> Tensor:
        if not self.random_start:
            return near.center[rows]
        unit = noise.unit(near.center, self.p, 0)[rows]
        return near.take(rows).project(near.center[rows].to(torch.float64) + unit * per_sample(near.radius[rows], unit))

    def _first_step(self, radius: Tensor) -> Tensor:
        if self.step_size is not None:
            return torch.full_like(radius, self.step_size)
        return radius * self.schedule.first(self.steps)

    def _direction(self, walk: Walk, noise: Noise, near: Neighbourhood, step: int) -> Tensor:
        gradient = walk.gradient.to(torch.float64)
        # Divided by the largest entry first: a norm of tiny entries would underflow to 0.
        size = gradient.flatten(1).abs().amax(1)
        flat = size == 0
        scaled = gradient / per_sample(size.masked_fill(flat, 1.0), gradient)
        if self.p == math.inf:
            found = scaled.sign()
        elif self.p == 1.0:
            found = scaled
        else:
            length = torch.linalg.vector_norm(scaled.flatten(1), dim=1)
            found = scaled / per_sample(length.masked_fill(flat, 1.0), scaled)
        if bool(flat.any()):
            stray = noise.unit(near.center, self.p, step + 1)[walk.rows]
            found = torch.where(per_sample(flat, found), stray, found)
        return found
