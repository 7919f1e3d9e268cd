"""The state of one run of projected gradient ascent: where each sample is, and the best it has seen."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.certify.attacks.neighbourhood import Neighbourhood, per_sample
from lipkit.certify.attacks.schedules import Schedule
from lipkit.certify.attacks.victim import Seen


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
        return Walk(
            self.near.take(mask),
            self.rows[mask],
            self.point[mask],
            self.previous[mask],
            self.gradient[mask],
            self.step[mask],
            self.top[mask],
            self.top_value[mask],
            self.top_gradient[mask],
            self.improved[mask],
        )

    def remember(self, seen: Seen) -> None:
        """Takes the gradient here, and keeps the point if its objective is the largest so far."""
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
