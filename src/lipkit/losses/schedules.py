"""Numbers that change while training: functions of the progress, from 0 at the start to 1 at the end.

A loss reads plain attributes, so a schedule needs no hook:

    ramp = LinearSchedule(0.0, 36 / 255, until=0.5)
    for step in range(total):
        loss.epsilon = ramp(step / total)
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import final, overload

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError


@final
class Dials:
    """The progress of steps that are recorded once and replayed (CUDA graphs): schedules of it are tensors.

    `turn` computes the value of every schedule that was asked for and writes it into its tensor, so that a replayed
    step reads the numbers of its own moment. Equal schedules share a tensor. After `close` a schedule that was not
    asked for before is refused: a recording would hold its first value for ever.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._progress = 0.0
        self._values: dict[Schedule, Tensor] = {}
        self._closed = False

    def turn(self, progress: float) -> None:
        """Move to a progress in [0, 1]. Cost: one launch for each schedule, and no waiting."""
        self._progress = progress
        for schedule, value in self._values.items():
            value.fill_(schedule(progress))

    def close(self) -> None:
        """Refuse new schedules from here on."""
        self._closed = True

    def value(self, schedule: "Schedule") -> Float[Tensor, ""]:
        """The tensor that follows a schedule."""
        if schedule not in self._values:
            if self._closed:
                raise ArgumentError(
                    f"{schedule} is asked for in a recorded step and was not in those before; use equal schedules in "
                    "every step, or train without graph."
                )
            self._values[schedule] = torch.full((), float(schedule(self._progress)), device=self._device)
        return self._values[schedule]


Progress = float | Dials


class Schedule(ABC):
    """A number for each progress in [0, 1]. Calling it has no effect but the value: no counter, no state."""

    @overload
    def __call__(self, progress: float) -> float: ...
    @overload
    def __call__(self, progress: Dials) -> Float[Tensor, ""]: ...
    @overload
    def __call__(self, progress: Progress) -> float | Float[Tensor, ""]: ...
    def __call__(self, progress: Progress) -> float | Float[Tensor, ""]:
        """The value at a progress in [0, 1], anything else is refused; of `Dials`, the tensor that follows it."""
        if isinstance(progress, Dials):
            return progress.value(self)
        if not 0.0 <= progress <= 1.0:
            raise ArgumentError(f"Progress lies in [0, 1], got {progress}; divide the step by the number of steps.")
        return self._at(progress)

    @abstractmethod
    def _at(self, progress: float) -> float: ...


@final
@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The same value throughout."""

    value: float

    def __post_init__(self) -> None:
        _finite(self.value)

    def _at(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True)
class _Ramp(Schedule):
    """From `start` to `end` while the progress goes from `since` to `until`; constant before and after.

    Args:
        start: Value up to the progress `since`.
        end: Value from the progress `until` on.
        since: Progress in [0, 1] at which the ramp begins.
        until: Progress in [0, 1] at which the ramp ends.
    """

    start: float
    end: float
    since: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        _finite(self.start, self.end)
        if not 0.0 <= self.since <= self.until <= 1.0:
            raise ArgumentError(f"A ramp needs 0 <= since <= until <= 1, got {self.since} and {self.until}.")

    def _at(self, progress: float) -> float:
        if progress >= self.until:
            return self.end
        if progress <= self.since:
            return self.start
        return self._between((progress - self.since) / (self.until - self.since))

    @abstractmethod
    def _between(self, share: float) -> float: ...


@final
@dataclass(frozen=True)
class LinearSchedule(_Ramp):
    """start + share (end - start), share = (progress - since) / (until - since) cut to [0, 1]."""

    def _between(self, share: float) -> float:
        return (1.0 - share) * self.start + share * self.end


@final
@dataclass(frozen=True)
class CosineSchedule(_Ramp):
    """Half a wave: end + (start - end) (1 + cos(pi share)) / 2, flat at both ends."""

    def _between(self, share: float) -> float:
        weight = (1.0 + math.cos(math.pi * share)) / 2.0
        return weight * self.start + (1.0 - weight) * self.end


@final
@dataclass(frozen=True)
class ExponentialSchedule(_Ramp):
    """start (end / start)^share: equal factors in equal times; both ends must be > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.start > 0.0 and self.end > 0.0):
            raise ArgumentError(
                f"An exponential ramp needs ends > 0, got {self.start} and {self.end}; use LinearSchedule."
            )

    def _between(self, share: float) -> float:
        return math.exp((1.0 - share) * math.log(self.start) + share * math.log(self.end))


@final
@dataclass(frozen=True)
class WarmCosineSchedule(Schedule):
    """progress / warm up to `warm`, at least a thousandth so that a first step moves; then half a wave from 1 to 0.

    Args:
        warm: Share of the run in which the value rises from 0 to 1, in [0, 1).
    """

    warm: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.warm < 1.0:
            raise ArgumentError(f"warm is the share of the rise, in [0, 1), got {self.warm}.")

    def _at(self, progress: float) -> float:
        if progress < self.warm:
            return max(progress / self.warm, 1e-3)
        return (1 + math.cos(math.pi * (progress - self.warm) / (1 - self.warm))) / 2


@final
@dataclass(frozen=True)
class PiecewiseSchedule(Schedule):
    """Straight lines through (progress, value) points in increasing order; constant outside. Equal progresses jump.

    Args:
        points: Pairs (progress, value), with progresses in [0, 1].
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ArgumentError("A piecewise schedule needs at least one (progress, value) point, got none.")
        times = [time for time, _ in self.points]
        _finite(*times, *(value for _, value in self.points))
        if times != sorted(times) or times[0] < 0.0 or times[-1] > 1.0:
            raise ArgumentError(f"The progresses of the points grow within [0, 1], got {times}; sort them.")

    def _at(self, progress: float) -> float:
        if progress < self.points[0][0]:
            return self.points[0][1]
        for (before, value), (time, after) in pairwise(self.points):
            if progress < time:
                return value + (after - value) * (progress - before) / (time - before)
        return self.points[-1][1]


def _finite(*values: float) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ArgumentError(f"A schedule is made of finite numbers, got {value}.")
