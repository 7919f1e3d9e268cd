"""The record of a profiler: log of the norms, what the trackers make of them, and the causes of each change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class LayerHistory:
    """One layer. Norms are at the recorded steps, causes are of the changes between them, one less.

    The differences of log norm are drift + curvature + decay + rest, up to rounding: the rest is what the series to
    second order does not explain, among it everything that was done to weights outside of the optimizer's steps.

    `gap` is the distance that bounds the radius of the series (None for convolutions as operators), `crossings` says
    of which intervals the first step was more than gap / 2, outside of that radius; `kappa` and `diffusion` are the
    noise terms of the first step of each interval, times its rate; None if they are refused.
    """

    name: str
    norm: Float64[Tensor, " times"]
    gap: Float64[Tensor, " times"] | None
    drift: Float64[Tensor, " changes"]
    curvature: Float64[Tensor, " changes"]
    decay: Float64[Tensor, " changes"]
    rest: Float64[Tensor, " changes"]
    crossings: Int64[Tensor, " changes"]
    kappa: Float64[Tensor, " changes"] | None
    diffusion: Float64[Tensor, " changes"] | None


@final
@dataclass(frozen=True, eq=False)
class History:
    """Diagnostics (ESTIMATE): nothing here bounds or certifies; `label` says what `log_constant` is.

    `log_constant` is computed anew at each recorded step. `realised` starts with it and adds the second-order series
    of the steps that were made, for any optimizer. `expected` adds the model's drift, kappa and -|lambda|^2 / 2, and
    `sampled` a draw of its diffusion besides; both are of plain SGD, and None where the model does not apply:
    `refused` says why, and also if weight decay cannot be told from drift.
    """

    label: str
    steps: Int64[Tensor, " times"]
    log_constant: Float64[Tensor, " times"]
    realised: Float64[Tensor, " times"]
    expected: Float64[Tensor, " times"] | None
    sampled: Float64[Tensor, " times"] | None
    layers: tuple[LayerHistory, ...]
    refused: Mapping[str, str]


@final
@dataclass(frozen=True)
class Entry:
    """The causes of one change of log norm of one layer, in the order of `LayerHistory`."""

    drift: float
    curvature: float
    decay: float
    rest: float
    crossings: int
    kappa: float | None
    diffusion: float | None


@final
class LayerRecord:
    """Grows while a profiler runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.norms: list[float] = []
        self.gaps: list[float | None] = []
        self.entries: list[Entry] = []

    def freeze(self) -> LayerHistory:
        """The record so far."""
        gaps = [gap for gap in self.gaps if gap is not None]
        kappa = [one.kappa for one in self.entries if one.kappa is not None]
        diffusion = [one.diffusion for one in self.entries if one.diffusion is not None]
        return LayerHistory(
            self.name,
            _row(self.norms),
            _row(gaps) if len(gaps) == len(self.norms) else None,
            _row([one.drift for one in self.entries]),
            _row([one.curvature for one in self.entries]),
            _row([one.decay for one in self.entries]),
            _row([one.rest for one in self.entries]),
            torch.tensor([one.crossings for one in self.entries], dtype=torch.int64),
            _row(kappa) if len(kappa) == len(self.entries) else None,
            _row(diffusion) if len(diffusion) == len(self.entries) else None,
        )


def _row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
