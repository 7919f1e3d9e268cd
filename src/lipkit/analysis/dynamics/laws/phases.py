"""How drift and noise share the growth of log K over a training, smoothed: the data of a phase plot."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.analysis.dynamics.history import History
from lipkit.analysis.dynamics.laws.forecast import require_chain, sum_layers
from lipkit.bound import Kind
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True, eq=False)
class Phases:
    """Growth of log K a step, by cause, at the end of each interval of a history: mean of the last `window` steps.

    `drift` is mu (weight decay with it), `curvature` is kappa >= 0, `diffusion` is lambda^2 >= 0, each summed over the
    layers and times the rate. Guarantee: ESTIMATE, a diagnostic.
    """

    steps: Int64[Tensor, " changes"]
    drift: Float64[Tensor, " changes"]
    curvature: Float64[Tensor, " changes"]
    diffusion: Float64[Tensor, " changes"]
    window: int

    @property
    def kind(self) -> Kind:
        """Always an estimate: a diagnostic proves nothing."""
        return Kind.ESTIMATE


def phases(history: History, window: int = 500) -> Phases:
    """Drift, curvature and diffusion of a profiled training by plain SGD, as moving averages.

    Luo saw four phases of kappa: it rises fast, fluctuates before the network overfits, declines, and stays at a level
    that is not below zero. Nothing here decides where one ends: look at the plot.

    Guarantee: ESTIMATE. Cost: sums. Reference: Luo 2025, section 4.8.3 and figure 4.3.

    Args:
        history: Of plain SGD, with noise terms, of a chain of layers.
        window: Steps of the moving average; at the beginning it has fewer.
    """
    if window < 1:
        raise ArgumentError(f"A moving average has a window of at least one step, got {window}.")
    require_chain(history)
    drift = torch.stack([layer.drift + layer.decay for layer in history.layers]).sum(0)
    curvature = sum_layers(history, lambda layer: layer.kappa)
    diffusion = sum_layers(history, lambda layer: layer.diffusion)
    ends = history.steps[1:]
    # Each window holds the whole intervals that end in it.
    first = torch.searchsorted(ends, ends - window, right=True)
    starts = history.steps[first]

    def smooth(changes: Tensor) -> Tensor:
        return torch.stack(
            [
                changes[low : high + 1].sum() / (end - start)
                for high, (low, start, end) in enumerate(zip(first, starts, ends, strict=True))
            ]
        )

    return Phases(ends, smooth(drift), smooth(curvature), smooth(diffusion), window)
