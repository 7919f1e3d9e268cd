"""Noise of the batch gradient by random signs: for layers of which only the gradient of the whole batch is known."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.dynamics.noise.gradient_noise import Heard, Noise
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer

# The norm and the sum of a gradient that nobody changed agree to this share, in any order of its float32 sums.
_UNCHANGED = 1e-5


def probe_gradients(
    output: Float[Tensor, "samples ..."],
    gradient: Float[Tensor, "samples ..."],
    parameters: Sequence[Tensor],
    weights: Float[Tensor, " samples"],
) -> tuple[Tensor | None, ...]:
    """s = sum_i w_i S_i for every parameter, in one backward pass, S_i the part of sample i; w = eps - mean eps.

    The rows of the output's gradient are the samples' own, so weights on rows are weights on losses. None for a
    parameter that the output does not depend on. The graph stays, and no `.grad` is touched.
    """
    rows = weights.to(gradient).reshape(-1, *(1 for _ in output.shape[1:]))
    return torch.autograd.grad(output, list(parameters), rows * gradient, retain_graph=True, allow_unused=True)


@final
@dataclass(frozen=True, eq=False)
class SignProbe(Heard):
    """Gradients of one layer by random signs, one for each probe; `seen` is the true gradient that came after them.

    Of one process alone two numbers of it are kept. Those of several are only known of the mean of all gradients.
    """

    count: int
    gradients: tuple[Tensor, ...]
    alone: bool = True
    seen: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def samples(self) -> int:
        return self.count

    @property
    def story(self) -> str:
        return f"signs on {self.count} samples, then {len(self.seen)} gradients"

    def listen(self, gradient: Tensor) -> None:
        """Keep what is needed of the gradient of the true backward pass."""
        self.seen.append(_mark(gradient) if self.alone else gradient.detach().clone())

    def agree(self, gradient: Tensor, measured: Measurement, processes: Processes) -> bool:
        if len(self.seen) != 1:
            # The same in all processes, as the story says.
            return False
        mark = self.seen[0] if self.alone else _mark(processes.sum(self.seen[0].to(torch.float64)) / processes.count)
        return torch.allclose(mark, _mark(gradient), rtol=_UNCHANGED, atol=0)

    def noise(self, layer: TrackedLayer, measured: Measurement, processes: Processes) -> Noise:
        """With s the gradient of a probe, the mean over signs is exact: E D^2 sigma[s, s] = sum_i D^2 sigma[S_i, S_i]
        of centred parts, and so for the squared slope. One probe of many layers deviates by about its own size.
        Guarantee: ESTIMATE, unbiased. Reference: ours.
        """
        total = self.count * processes.count
        factor = total / (total - 1) / len(self.gradients)
        curvature = diffusion = 0.0
        # All sums before anything can fail: other processes wait for them.
        wide = [layer.part_of(whole).to(torch.float64) for whole in self.gradients]
        for part in [processes.sum(one) / processes.count for one in wide]:
            curvature += factor * float(measured.form(part)) / (2 * measured.value)
            seen = float((measured.left * layer.operator(part).apply(measured.right)).sum())
            diffusion += factor * (seen / measured.value) ** 2
        return Noise(curvature, diffusion)


def _mark(gradient: Tensor) -> Float64[Tensor, " 2"]:
    wide = gradient.detach().to(torch.float64)
    return torch.stack([torch.linalg.vector_norm(wide), wide.abs().sum()])
