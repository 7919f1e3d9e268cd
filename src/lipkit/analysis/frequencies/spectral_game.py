"""The spectral game: bands of an image are players, and a coalition is worth what it tells about the label."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit._seeds import generator
from lipkit.analysis.frequencies.frequency_bands import (
    Baseline,
    Rings,
    SquareRings,
    ZeroBaseline,
    bands,
    check_bands,
    check_images,
)
from lipkit.analysis.frequencies.likelihoods import log_likelihoods
from lipkit.analysis.frequencies.robustness_score import ScoreForm, SignedScore, importance, score
from lipkit.analysis.frequencies.shapley_values import shapley
from lipkit.errors import ArgumentError, ShapeError

# Bands up to which all coalitions are evaluated: 4096 forward passes for each image.
_ALL_COALITIONS = 12


class ScoreInterval(NamedTuple):
    """The score of a mean, and an interval around it."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class SpectralValues:
    """The result of a spectral game. Everything is an estimate from a sample of images.

    Args:
        values: Mean worth of each coalition, bit i for band i; None beyond 12 bands, where coalitions are drawn.
        each: Shapley values of each image.
        sampling_error: The part of `error` that comes from the drawn orders; 0 where all coalitions were evaluated.
    """

    values: Float64[Tensor, " coalitions"] | None
    each: Float64[Tensor, "images bands"]
    sampling_error: Float64[Tensor, " bands"]

    @property
    def shapley(self) -> Float64[Tensor, " bands"]:
        """Mean gain of log-likelihood by each band, in nats."""
        return self.each.mean(0)

    @property
    def error(self) -> Float64[Tensor, " bands"]:
        """Standard errors of `shapley`, from the deviation between images; drawn orders are in it."""
        return self.each.std(0) / math.sqrt(len(self.each))

    @property
    def sid(self) -> Float64[Tensor, " bands"]:
        """The spectral importance distribution: `shapley`, shifted and scaled to a distribution."""
        return importance(self.shapley)

    def score_interval(
        self, beta: float = 0.75, form: ScoreForm = SignedScore(), level: float = 0.95, draws: int = 1000, seed: int = 0
    ) -> ScoreInterval:
        """The score, and where it falls in a share `level` of means over images drawn with replacement (bootstrap).

        Guarantee: an approximation for many images. Cost: `draws` means.
        """
        if not (0 < level < 1 and draws >= 1):
            raise ArgumentError(f"level lies in (0, 1) and draws is at least 1, got {level} and {draws}.")
        count = len(self.each)
        chosen = torch.randint(count, (draws, count), generator=generator(seed)).to(self.each.device)
        means = torch.stack([self.each[one].mean(0) for one in chosen])
        found = score(importance(means), beta, form)
        tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=found.device)
        low, high = found.quantile(tails).tolist()
        return ScoreInterval(float(score(self.sid, beta, form)), low, high)


@final
@dataclass(frozen=True, eq=False)
class SpectralGame:
    """Shapley values of the bands of images for a classifier (I-ASIDE).

        v(T) = E[log Q(y | x with the bands in T) - log Q(y | x with none)],   Q = softmax of the logits.

    An image with the bands in T is a sum of its band parts in T and of the baseline's parts elsewhere. So each image is
    transformed once, and a matrix of zeros and ones makes all coalitions. Beyond 12 bands, random orders of bands are
    drawn for each image; the mean over orders is unbiased. The model runs in evaluation mode, without gradients.

    Guarantee: ESTIMATE, with standard errors. Cost: 2^bands forward passes for each image, or orders (bands + 1).
    Reference: Luo 2025, chapter 6; coalitions by a matrix, errors and drawn orders are ours.

    Args:
        model: Maps a batch of images to logits.
        bands: Number of players, at least two.
        rings: The shape of bands.
        baseline: What stands where a band is absent.
        batch: The most images in one forward pass.
        orders: Orders drawn for each image beyond 12 bands, at least two.
        seed: Of the orders.
    """

    model: nn.Module
    bands: int = 8
    rings: Rings = SquareRings()
    baseline: Baseline = ZeroBaseline()
    batch: int = 1024
    orders: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bands < 2:
            raise ArgumentError(f"A game needs at least two bands, got {self.bands}.")
        if self.batch < 1 or self.orders < 2:
            raise ArgumentError(f"batch is at least 1 and orders at least 2, got {self.batch} and {self.orders}.")

    def __call__(
        self, images: Float[Tensor, "images *channels height width"], labels: Shaped[Tensor, " labels"]
    ) -> SpectralValues:
        check_bands(check_images(images), self.bands, self.rings)
        if labels.shape != images.shape[:1] or len(images) < 2:
            raise ShapeError(
                f"One label for each of at least two images is needed, got {tuple(labels.shape)} for {len(images)}."
            )
        if labels.is_floating_point():
            raise ArgumentError(f"Labels are whole numbers, got {labels.dtype}; give labels.long().")
        fillings = self.baseline.images(images)
        with torch.no_grad(), evaluating(self.model):
            play = self._all_coalitions if self.bands <= _ALL_COALITIONS else self._drawn_orders
            return play(images, labels.to(images.device).long(), fillings)

    def _all_coalitions(self, images: Tensor, labels: Tensor, fillings: Tensor | None) -> SpectralValues:
        codes = torch.arange(2**self.bands, device=images.device)
        kept = (codes[:, None] >> torch.arange(self.bands, device=images.device) & 1).bool()
        together = max(1, self.batch // len(kept))
        found = [
            self._log_likelihoods(images[at], labels[at], None if fillings is None else fillings[at], kept)
            for at in torch.arange(len(images), device=images.device).split(together)
        ]
        worth = torch.cat(found)
        worth = worth - worth[:, :1]
        each = shapley(worth)
        return SpectralValues(worth.mean(0), each, torch.zeros_like(each[0]))

    def _drawn_orders(self, images: Tensor, labels: Tensor, fillings: Tensor | None) -> SpectralValues:
        source = generator(self.seed)
        means: list[Tensor] = []
        variances: list[Tensor] = []
        for at in range(len(images)):
            one = slice(at, at + 1)
            places = torch.rand(self.orders, self.bands, generator=source).argsort(1).argsort(1).to(images.device)
            # Row t of an order holds the first t bands that come.
            kept = places[:, None] < torch.arange(self.bands + 1, device=images.device)[:, None]
            filling = None if fillings is None else fillings[one]
            worth = self._log_likelihoods(images[one], labels[one], filling, kept.flatten(0, 1))
            added = worth.view(self.orders, self.bands + 1).diff(dim=1).gather(1, places)
            means.append(added.mean(0))
            variances.append(added.var(0) / self.orders)
        return SpectralValues(None, torch.stack(means), torch.stack(variances).sum(0).sqrt() / len(images))

    def _log_likelihoods(
        self, images: Tensor, labels: Tensor, fillings: Tensor | None, kept: Bool[Tensor, "coalitions bands"]
    ) -> Float64[Tensor, "images coalitions"]:
        parts, choice = bands(images, self.bands, self.rings), kept.to(images.dtype)
        if fillings is not None:
            parts = torch.cat([parts, bands(fillings, self.bands, self.rings)])
            choice = torch.cat([choice, 1 - choice], 1)
        columns = parts.flatten(1)
        found: list[Tensor] = []
        for some in choice.split(max(1, self.batch // len(images))):
            mixed = (some @ columns).view(-1, *images.shape[1:])
            found.append(log_likelihoods(self.model, mixed, labels.repeat(len(some))).view(len(some), -1))
        return torch.cat(found).mT
