"""The record of a profiler: log of the norms, what the trackers make of them, and the causes of each change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from jaxtyping import Float64, Int64
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class LayerHistory:
    """One layer. Norms are at the recorded steps, causes are of the changes between them, one less.

    The differences of log norm are drift + curvature + decay + rest, up to rounding: the rest is what the series to
    second order does not explain, among it everything that was done to weights outside of the optimizer's steps.

    `amplification` is ||D^2 sigma_1||, the most that a unit step of the weight can bend the norm: 1 / gap of matrices,
    of operators in the kernel, and only if `AsOperator(amplification=True)` asks for it, else None.

    `gap` is the distance that bounds the radius of the series (None for convolutions as operators), `crossings` says
    of which intervals the first step was more than gap / 2, outside of that radius. `time` is that of the stochastic
    model: the sum of the rates of the steps that moved the layer. `kappa` and `diffusion` are the noise terms of the
    first step of each interval, so that times `time` they are those of all its steps; None if they are refused. `share`
    is d log K / d log norm: 1 in a chain, less in a branch, 0 where the output does not see the layer.

    A profiler with `split` also has the parts of kappa and diffusion that are due to the variances of single entries of
    the gradient, and what they were if all entries were independent with the mean variance (`scalar`). The rest,
    `kappa_covariance` and `diffusion_covariance`, is due to entries that vary together, and may be negative.
    """

    name: str
    norm: Float64[Tensor, " times"]
    gap: Float64[Tensor, " times"] | None
    drift: Float64[Tensor, " changes"]
    curvature: Float64[Tensor, " changes"]
    decay: Float64[Tensor, " changes"]
    rest: Float64[Tensor, " changes"]
    crossings: Int64[Tensor, " changes"]
    time: Float64[Tensor, " changes"]
    kappa: Float64[Tensor, " changes"] | None
    diffusion: Float64[Tensor, " changes"] | None
    share: Float64[Tensor, " times"] | None = None
    kappa_variance: Float64[Tensor, " changes"] | None = None
    diffusion_variance: Float64[Tensor, " changes"] | None = None
    kappa_scalar: Float64[Tensor, " changes"] | None = None
    diffusion_scalar: Float64[Tensor, " changes"] | None = None
    amplification: Float64[Tensor, " times"] | None = None

    @property
    def kappa_covariance(self) -> Float64[Tensor, " changes"] | None:
        """kappa - kappa_variance."""
        return _difference(self.kappa, self.kappa_variance)

    @property
    def diffusion_covariance(self) -> Float64[Tensor, " changes"] | None:
        """diffusion - diffusion_variance."""
        return _difference(self.diffusion, self.diffusion_variance)


@final
@dataclass(frozen=True, eq=False)
class History:
    """Diagnostics (ESTIMATE): nothing here bounds or certifies; `label` says what `log_constant` is.

    `log_constant` is the fold over the network at the norms of its linear and convolution layers, measured anew at each
    recorded step; everything else counts as 1. The trackers are the same fold of norms that are not measured again:
    `realised` starts with the first ones and adds the second-order series of the steps that were made, for any
    optimizer. `expected` adds the model's drift, kappa and -|lambda|^2 / 2, and `sampled` a draw of its diffusion
    besides; both are of plain SGD, and None where the model does not apply. `refused` says why, also if weight decay
    cannot be told from drift, if noise terms cannot be split ("split"), and if the network cannot be read ("fold"):
    then K is the product of all norms.
    """

    label: str
    steps: Int64[Tensor, " times"]
    log_constant: Float64[Tensor, " times"]
    realised: Float64[Tensor, " times"]
    expected: Float64[Tensor, " times"] | None
    sampled: Float64[Tensor, " times"] | None
    layers: tuple[LayerHistory, ...]
    refused: Mapping[str, str]


def _difference(whole: Tensor | None, part: Tensor | None) -> Tensor | None:
    return None if whole is None or part is None else whole - part
