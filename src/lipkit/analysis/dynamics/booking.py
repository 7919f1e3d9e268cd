"""One layer between two measurements: each step's change of log sigma, booked by cause."""

import math
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.analysis.dynamics.gradient_noise import Noise
from lipkit.analysis.dynamics.gram_decomposition import exceeds
from lipkit.analysis.dynamics.history import Entry, LayerRecord
from lipkit.analysis.dynamics.tracked_layers import Measurement, Pair, TrackedLayer, pair_of


@final
class Booking:
    """The books of one layer. With X the step that was made, and vectors that follow the weight:

        drift + decay = u'X v / sigma                                          at every step, decay = -f of a step -f W,
        curvature     = D^2 sigma[X, X] / (2 sigma) - (u'X v / sigma)^2 / 2    at the first step after a measurement,

    and at the others the same share of ||X||_F^2 as there. `rest` closes the books when sigma is measured again.
    Sums stay on the device of the weight, so that a step waits for nothing.
    """

    def __init__(self, layer: TrackedLayer) -> None:
        self.layer = layer
        self.record = LayerRecord(layer.name)
        self.noise: Noise | None = None
        self._old: Tensor | None = None
        self._open(self.measure(0))
        self.realised = self.expected = self.log_norm

    @property
    def log_norm(self) -> float:
        """log sigma at the last measurement."""
        return math.log(self.measured.value)

    def before_step(self) -> None:
        """Keep the weight."""
        self._old = self.layer.weight().clone()

    def after_step(self, decay: float, rate: float) -> Float64[Tensor, ""]:
        """Book the step that was made; returns this layer's part of the variance of the model's diffusion.

        Args:
            decay: The factor f of the part -f W of the step.
            rate: The rate of the step.
        """
        assert self._old is not None, "before_step comes first"
        change = self.layer.weight() - self._old
        if self._fresh:
            change = change.to(torch.float64)
            pair = pair_of(self.measured, change)
        else:
            pair = self._pair
        slope = pair.slope(self.layer.operator(change)).to(torch.float64)
        size = torch.linalg.vector_norm(change).to(torch.float64).square()
        if self._fresh:
            self._bend(change, slope, size, rate)
        # A step that moves nothing came without a gradient, so it carries no noise either.
        moved = (size > 0).to(torch.float64)
        noise = self.noise or Noise(0.0, 0.0)
        self._drift += slope + decay
        self._decay -= decay
        self._curvature += self._bending * size
        self._model += moved * (rate**2 * (noise.curvature - noise.diffusion / 2))
        self._fresh, self._old = False, None
        return moved * (rate**2 * noise.diffusion)

    def follow(self) -> None:
        """Let the vectors follow the weight through a step without a measurement."""
        self._pair = self._pair.follow(self.layer.operator(self.layer.weight()))

    def measure(self, step: int) -> Measurement:
        """The norm as it is now, after a number of steps."""
        return self.layer.measure(self.layer.weight(), step)

    def close(self, measured: Measurement) -> None:
        """Book the rest, and open the next interval at what was measured."""
        before = self.log_norm
        drift, curvature, decay = float(self._drift), float(self._curvature), float(self._decay)
        crossings, noise, rate, model = self._crossings, self.noise, self._rate, float(self._model)
        self._open(measured)
        rest = self.log_norm - before - drift - curvature - decay
        kappa = None if noise is None else rate * noise.curvature
        diffusion = None if noise is None else rate * noise.diffusion
        self.record.entries.append(Entry(drift, curvature, decay, rest, crossings, kappa, diffusion))
        self.realised += drift + curvature + decay
        self.expected += drift + decay + model

    def _open(self, measured: Measurement) -> None:
        weight = self.layer.weight()
        self.measured: Measurement = measured
        self.record.norms.append(self.measured.value)
        self.record.gaps.append(self.measured.gap)
        self._pair: Pair = pair_of(self.measured, weight)
        self._drift, self._curvature, self._decay, self._model = torch.zeros(
            4, dtype=torch.float64, device=weight.device
        ).unbind()
        self._bending: Tensor | float = 0.0
        self._crossings = 0
        self._rate = 0.0
        self._fresh = True

    def _bend(self, change: Tensor, slope: Tensor, size: Tensor, rate: float) -> None:
        self._rate = rate
        if not bool(size > 0):
            return
        curvature = self.measured.form(change) / (2 * self.measured.value) - slope.square() / 2
        self._bending = curvature / size
        gap = self.measured.gap
        self._crossings = int(gap is not None and exceeds(change.flatten(1), gap / 2))
