"""Noise of the batch gradient by random signs: for layers of which only the gradient of the whole batch is known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.dynamics.gradient_noise import Heard, Noise
from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer

# The norm and the sum of a gradient that nobody changed agree to this share, in any order of its float32 sums.
_UNCHANGED = 1e-5


def probe_gradients(
    output: Float[Tensor, "samples ..."],
    gradient: Float[Tensor, "samples ..."],
    parameters: Sequence[Tensor],
    signs: Float[Tensor, " samples"],
) -> tuple[Tensor | None, ...]:
    """s = sum_i (eps_i - mean eps) S_i for every parameter, in one backward pass, S_i the part of sample i.

    The rows of the output's gradient are the samples' own, so weights on rows are weights on losses. None for a
    parameter that the output does not depend on. The graph stays, and no `.grad` is touched.
    """
    wide = signs.to(torch.float64)
    weights = (wide - wide.mean()).to(gradient).reshape(-1, *(1 for _ in output.shape[1:]))
    return torch.autograd.grad(output, list(parameters), weights * gradient, retain_graph=True, allow_unused=True)


@final
@dataclass(frozen=True, eq=False)
class SignProbe(Heard):
    """Gradients of one layer by random signs, one for each probe; `mark` is what the true gradient was right after."""

    count: int
    gradients: tuple[Tensor, ...]
    mark: list[Float64[Tensor, " 2"]] = field(default_factory=list[Tensor])

    @property
    def samples(self) -> int:
        return self.count

    def listen(self, gradient: Tensor) -> None:
        """Keep a mark of the gradient of the true backward pass."""
        self.mark.append(_mark(gradient))

    def agree(self, gradient: Tensor, layer: TrackedLayer, measured: Measurement) -> bool:
        return len(self.mark) == 1 and torch.allclose(self.mark[0], _mark(gradient), rtol=_UNCHANGED, atol=0)

    def noise(self, layer: TrackedLayer, measured: Measurement) -> Noise:
        """With s the gradient of a probe, the mean over signs is exact: E D^2 sigma[s, s] = sum_i D^2 sigma[S_i, S_i]
        of centred parts, and so for the squared slope. One probe of many layers deviates by about its own size.
        Guarantee: ESTIMATE, unbiased. Reference: ours.
        """
        factor = self.count / (self.count - 1) / len(self.gradients)
        curvature = diffusion = 0.0
        for whole in self.gradients:
            part = layer.part_of(whole).to(torch.float64)
            curvature += factor * float(measured.form(part)) / (2 * measured.value)
            seen = float((measured.left * layer.operator(part).apply(measured.right)).sum())
            diffusion += factor * (seen / measured.value) ** 2
        return Noise(curvature, diffusion)


def _mark(gradient: Tensor) -> Float64[Tensor, " 2"]:
    wide = gradient.detach().to(torch.float64)
    return torch.stack([torch.linalg.vector_norm(wide), wide.abs().sum()])
