"""One layer between two measurements: each step's change of log sigma, booked by cause."""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.analysis.dynamics.layer_record import Entry, LayerRecord, Moment
from lipkit.analysis.dynamics.noise.gradient_noise import Noise
from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer


@final
@dataclass(frozen=True)
class Causes:
    """What is known of a layer's step before its numbers come from the device.

    Args:
        decay: The factor f of the part -f W of the step.
        rate: Its rate, the time that it takes in the stochastic model.
        mean: The mean of the noise terms in the change of log sigma, without the drift.
        diffused: Their draw.
    """

    decay: float
    rate: float
    mean: float
    diffused: float


@final
@dataclass
class Sums:
    """Sums over the steps of an interval, and the curvature of its first step as a share of ||X||_F^2.

    `time` sums the rates of the steps that moved, `squares` their squares.
    """

    drift: float = 0.0
    curvature: float = 0.0
    decay: float = 0.0
    mean: float = 0.0
    diffused: float = 0.0
    bending: float = 0.0
    time: float = 0.0
    squares: float = 0.0


# No noise at all.
_SILENCE = Noise(0.0, 0.0)


@final
class Booking:
    """The books of one layer. With X the step that was made, and vectors that follow the weight:

        drift + decay = u'X v / sigma                                          at every step, decay = -f of a step -f W,
        curvature     = D^2 sigma[X, X] / (2 sigma) - (u'X v / sigma)^2 / 2    at the first step after a measurement,

    and at the others the same share of ||X||_F^2 as there. `rest` closes the books when sigma is measured again.
    """

    def __init__(self, layer: TrackedLayer, measured: Measurement) -> None:
        self.layer = layer
        self.record = LayerRecord(layer.name)
        self.noise: Noise | None = None
        self.open(measured)
        self._note(self.log_norm, self.log_norm, self.log_norm)

    @property
    def log_norm(self) -> float:
        """log sigma at the last measurement."""
        return math.log(self.measured.value)

    def open(self, measured: Measurement) -> None:
        """Start an interval at what was measured."""
        self.measured: Measurement = measured
        self._sums = Sums()
        self._crossings = 0

    def causes(self, decay: float, rate: float, draw: float) -> Causes:
        """What is known of a step that was made.

        Args:
            decay: The factor f of the part -f W of the step.
            rate: The rate of the step.
            draw: A normal number, for the diffusion of the sampled tracker.
        """
        noise = self.noise or _SILENCE
        mean = rate**2 * (noise.curvature - noise.diffusion / 2)
        return Causes(decay, rate, mean, rate * math.sqrt(noise.diffusion) * draw)

    def may_cross(self, size: float) -> bool:
        """Whether a first step of this Frobenius norm may move the largest value past another."""
        return self.measured.gap is not None and size > self.measured.gap / 2

    def bend(self, slope: float, size: float, form: float, norm: float) -> None:
        """Learn the curvature from the first step of an interval, before it is booked.

        Args:
            slope: u'X v / sigma.
            size: ||X||_F.
            form: D^2 sigma[X, X].
            norm: ||X||_2, or any number that is at least that and crosses nothing.
        """
        if size > 0:
            self._sums.bending = (form / (2 * self.measured.value) - slope**2 / 2) / size**2
            self._crossings = int(self.measured.gap is not None and norm > self.measured.gap / 2)

    def book(self, slope: float, size: float, causes: Causes) -> None:
        """Book a step by u'X v / sigma, ||X||_F and its causes."""
        # A step that moves nothing came without a gradient or was skipped, so it has no decay and no noise either.
        if size > 0:
            sums = self._sums
            sums.drift += slope + causes.decay
            sums.decay -= causes.decay
            sums.curvature += sums.bending * size**2
            sums.mean += causes.mean
            sums.diffused += causes.diffused
            sums.time += causes.rate
            sums.squares += causes.rate**2

    def close(self, measured: Measurement) -> None:
        """Book the rest, and open the next interval at what was measured."""
        before, moment, sums = self.log_norm, self.record.moments[-1], self._sums
        crossings, noise = self._crossings, self.noise
        self.open(measured)
        known = sums.drift + sums.curvature + sums.decay
        rest = self.log_norm - before - sums.drift - sums.curvature - sums.decay
        heard, split = int(noise is not None), int(noise is not None and noise.diagonal is not None)
        rate = sums.squares / sums.time if sums.time else 0.0
        terms = tuple(rate * term for term in _numbers(noise or _SILENCE))
        causes = (sums.drift, sums.curvature, sums.decay, rest, sums.time)
        self.record.entries.append(Entry(*causes, *terms, crossings=crossings, known=heard, split=split))
        mean = sums.drift + sums.decay + sums.mean
        self._note(moment.realised + known, moment.expected + mean, moment.sampled + mean + sums.diffused)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step needs, but for the weights and vectors, as tensors on the CPU."""
        noise = [] if self.noise is None else [*_numbers(self.noise), float(self.noise.diagonal is not None)]
        return {
            **self.record.state(),
            "sums": torch.tensor(astuple(self._sums), dtype=torch.float64),
            "noise": torch.tensor(noise, dtype=torch.float64),
            "crossings": torch.tensor(self._crossings),
        }

    def restore(self, state: Mapping[str, Tensor], measured: Measurement) -> None:
        """Carry on from what `state` gave, and from the norm at the weight of the last measurement."""
        self.open(measured)
        self.record.restore(state)
        self._sums = Sums(*state["sums"].tolist())
        self.noise = _noise(state["noise"].tolist()) if state["noise"].numel() else None
        self._crossings = int(state["crossings"])

    def _note(self, realised: float, expected: float, sampled: float) -> None:
        one = self.measured
        self.record.moments.append(Moment(one.value, one.gap, one.amplification, realised, expected, sampled))


def _numbers(noise: Noise) -> list[float]:
    """Curvature and diffusion of all, of the diagonal and of the mean variance, zero where these are not known."""
    parts = (noise, noise.diagonal or _SILENCE, noise.scalar or _SILENCE)
    return [number for part in parts for number in (part.curvature, part.diffusion)]


def _noise(numbers: list[float]) -> Noise:
    """What `_numbers` were of; the last number says whether there are parts."""
    curvature, diffusion, *parts, split = numbers
    if not split:
        return Noise(curvature, diffusion)
    return Noise(curvature, diffusion, Noise(parts[0], parts[1]), Noise(parts[2], parts[3]))
