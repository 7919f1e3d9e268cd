"""One number for how much a classifier relies on low frequencies."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError


class ScoreForm(ABC):
    """How the weighted mean of a distribution over bands becomes a score."""

    @abstractmethod
    def __call__(self, sid: Float64[Tensor, "*batch bands"], weights: Float64[Tensor, " bands"]) -> Tensor:
        """The score of each distribution."""


@final
@dataclass(frozen=True)
class SignedScore(ScoreForm):
    """(w'p - |w|_1 / M) / (1 - |w|_1 / M): 1 if only the lowest band counts, 0 if all count alike, below for high ones.

    For 8 bands and beta = 0.75 it lies in [-0.5753, 1]. Ours.
    """

    def __call__(self, sid: Float64[Tensor, "*batch bands"], weights: Float64[Tensor, " bands"]) -> Tensor:
        uniform = weights.mean()
        return (sid @ weights - uniform) / (1 - uniform)


@final
@dataclass(frozen=True)
class PrintedScore(ScoreForm):
    """|w'p / |w|_2 - eta| / (1 - eta), eta = |w|_1 / (M |w|_2): as published.

    Its divisor is a bound that is never reached: for 8 bands and beta = 0.75 it lies in [0, 0.5217], not in [0, 1], and
    a classifier that uses only the highest band has 0.3002. Reference: Luo 2025, equations 6.10 and 6.11.
    """

    def __call__(self, sid: Float64[Tensor, "*batch bands"], weights: Float64[Tensor, " bands"]) -> Tensor:
        length = torch.linalg.vector_norm(weights)
        eta = weights.mean() / length
        return (sid @ weights / length - eta).abs() / (1 - eta)


def importance(shapley: Float[Tensor, "*batch bands"]) -> Float64[Tensor, "*batch bands"]:
    """Shapley values, shifted and scaled to a distribution: (psi - min psi) / |psi - min psi|_1; 1/M if all are equal.

    One entry is 0 at least, and differences of any size come out as differences of size 1: noise around a constant does
    not look uniform. So look at the values and their errors too. Reference: Luo 2025, section 6.3.1.
    """
    shifted = shapley.double() - shapley.double().amin(-1, keepdim=True)
    if not bool(torch.isfinite(shifted).all()):
        raise NonFiniteError("Some Shapley values are NaN, infinite or too far apart; check the model's outputs.")
    total = shifted.sum(-1, keepdim=True)
    return torch.where(total > 0, shifted / total.where(total > 0, 1.0), 1 / shapley.shape[-1])


def score(
    sid: Float[Tensor, "*batch bands"], beta: float = 0.75, form: ScoreForm = SignedScore()
) -> Float64[Tensor, "*batch"]:
    """How much of a distribution over bands lies at low frequencies, with weights beta^i for band i.

    Guarantee: a diagnostic; beta was chosen by its author for the correlation that it then shows.

    Args:
        sid: Distributions over bands, from the lowest, as `SpectralValues.sid`.
        beta: Weight of a band relative to the one below, in (0, 1).
        form: `SignedScore()`, or `PrintedScore()` as published.
    """
    if not 0 < beta < 1:
        raise ArgumentError(f"beta lies in (0, 1), got {beta}.")
    wide = sid.double()
    if sid.ndim < 1 or sid.shape[-1] < 2 or not bool(((wide >= 0).all(-1) & ((wide.sum(-1) - 1).abs() < 1e-4)).all()):
        raise ArgumentError(
            f"sid is a distribution over at least two bands, got shape {tuple(sid.shape)}: {sid.tolist()}."
        )
    # What rounding left of a sum of one would move the score out of its range.
    wide = wide / wide.sum(-1, keepdim=True)
    return form(wide, beta ** torch.arange(sid.shape[-1], dtype=torch.float64, device=sid.device))
