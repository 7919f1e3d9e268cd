"""Elections with known shares: samples of multinomial laws, and the radius that the quantile rule gives."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import ndtri
from torch import Tensor

from lipkit.certify.smoothing import Event, Theorem
from lipkit.certify.smoothing.noise import Constants, Noise, PairRadii, Source
from lipkit.certify.smoothing.samples import Samples


@final
@dataclass(frozen=True)
class Quantiles(Noise):
    """Gaussian noise of deviation 1 with the quantile rule alone: (Phi^-1(lower) - Phi^-1(upper))/2."""

    @property
    def p(self) -> float:
        return 2.0

    @property
    def rules(self) -> tuple[str, ...]:
        return ("quantiles",)

    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        return source.normal(shape)

    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        value = torch.from_numpy((ndtri(lower.numpy())[:, None] - ndtri(upper.numpy())) / 2)
        return PairRadii(value, torch.zeros_like(value, dtype=torch.int64))


QUANTILES = Theorem(Quantiles())


def voted(selection: np.ndarray, counts: np.ndarray) -> Samples:
    """Samples with these numbers of votes for each class, of shape (batch, classes), to choose and to prove with."""
    batch, classes = counts.shape
    n0 = int(selection[0].sum())
    winners = np.repeat(np.tile(np.arange(classes), batch), selection.ravel()).reshape(batch, n0)
    logits = torch.nn.functional.one_hot(torch.from_numpy(winners), classes).float()
    everyone = torch.arange(classes).expand(batch, classes)
    votes = torch.from_numpy(counts.astype(np.int64))
    return Samples(logits, votes, votes.sum(1), everyone)


def drawn(shares: np.ndarray, n0: int, n: int, runs: int, seed: int) -> Samples:
    """Independent runs of n0 and n votes with these shares of the classes."""
    rng = np.random.default_rng(seed)
    return voted(rng.multinomial(n0, shares, runs), rng.multinomial(n, shares, runs))


def false(event: Event, shares: np.ndarray) -> np.ndarray:
    """Which certificates are wrong: the label is not the top class, or the radius is above that of the true shares."""
    radius = QUANTILES.radius(event).numpy()
    order = np.argsort(shares)
    truth = (ndtri(shares[order[-1]]) - ndtri(shares[order[-2]])) / 2
    wrong = shares[event.label.numpy()] < shares.max()
    return (radius > 0) & (wrong | (radius > truth * (1 + 1e-9)))


def mean_radius(event: Event) -> float:
    """The mean of what is certified, 0 where nothing is."""
    return float(QUANTILES.radius(event).clamp(min=0).mean())
