"""Estimates: the local constant from extreme values of random gradients, and how steepness is distributed."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Kind, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.lower.difference_quotients import draw_points
from lipkit.bounds.lower.sampling import steepest
from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Dense
from lipkit.regions import Ball, Region
from lipkit.trace import Network

# Shapes the likelihood is maximised from: it has many local maxima.
_SHAPES = (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
# Below this Kolmogorov-Smirnov probability no fit is believed.
_REJECTED = 1e-3
# An end further than this above the largest maximum, in units of their spread, is that of a search which runs away to
# a law without an end.
_FAR = 100.0
# Entries of the points that are drawn together.
_TOGETHER = 2**22
# Maxima that differ by less than this, relatively, are one number.
_SPREAD = 1e-9


@final
@dataclass(frozen=True)
class Score:
    """A CLEVER score: the estimated distance to another class, for each of them too. It certifies nothing."""

    radius: float
    label: int
    radii: Mapping[int, float]
    kind: Kind = Kind.ESTIMATE

    def __str__(self) -> str:
        return f"{self.radius:.5g} ({self.kind}, distance to another class than {self.label})"


@final
@dataclass(frozen=True)
class CLEVER(RegionMethod):
    """The local constant as the right end point of a distribution fitted to maxima of gradient norms.

    `batches` maxima over `samples` uniform points of the ball (or box) each are taken for draws of a reverse Weibull
    law, one of the three limits of maxima; its location, fitted by maximum likelihood, is the estimate. The fit with
    the best Kolmogorov-Smirnov probability over several starts counts. If that is below 0.001, the end further than a
    hundred times their spread above the maxima, or these all one number, the largest maximum is returned.
    For a classifier the function must be a margin f_c - f_j: `network.then(Dense(row))`; the largest gradient of a
    single logit says nothing about it.

    Guarantee: none, ESTIMATE. Piecewise constant gradients (ReLU, few pieces) fit badly. Cost: batches * samples
    backward passes for each output. Seeded.
    Reference: Weng et al. 2018 (CLEVER). The original evaluation takes 500 batches of 1024.
    """

    batches: int = 500
    samples: int = 1024
    metric: Metric = L2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batches < 2 or self.samples < 1:
            raise ArgumentError(
                f"CLEVER needs at least two batches of at least one sample, got {self.batches} and {self.samples}."
            )

    def _bound(self, network: Network, region: Region) -> Bound:
        samples = each_sample(region, network.source)
        ends = [end_point(self.maxima(network, one)) for one in ([region] if samples is None else samples)]
        value = torch.tensor(ends, dtype=torch.float64)
        of = Scope.WHOLE if samples is None else Scope.SAMPLE
        found = Bound.from_value(value[0] if samples is None else value, Kind.ESTIMATE, self, self.metric, of)
        return replace(found, region=region)

    def score(self, network: Network, ball: Ball) -> Score:
        """The CLEVER score of a classifier at the center of a ball: how far away another class may be, by estimate.

            min over j other than c of min( (f_c(x) - f_j(x)) / L_j, radius ),

        with c the class at the center x and L_j the estimated constant of the margin f_c - f_j on the ball. The metric
        of the constants is that of the ball. Guarantee: none, ESTIMATE; an attack may succeed within the score.
        Cost: that of one estimate for each other class.
        """
        if len(network.target) != 1 or network.target[0] < 2:
            raise ArgumentError(f"A score needs a classifier with two classes or more, got outputs {network.target}.")
        if tuple(ball.center.shape) != network.source:
            raise ShapeError(f"The ball must have the shape {network.source} of one input, got {ball.center.shape}.")
        with torch.no_grad():
            logits = network.to(torch.float64)(ball.center.to(network.device, torch.float64)[None])[0]
        label, one = int(logits.argmax()), replace(self, metric=Metric(ball.p, 2.0))
        radii: dict[int, float] = {}
        for j in range(len(logits)):
            if j == label:
                continue
            row = torch.zeros(1, len(logits), dtype=torch.float64, device=network.device)
            row[0, label], row[0, j] = 1.0, -1.0
            constant = float(one(network.to(torch.float64).then(Dense(row)), ball).value)
            margin = float(logits[label] - logits[j])
            radii[j] = ball.radius if constant * ball.radius <= margin else margin / constant
        return Score(min(radii.values()), label, radii)

    def maxima(self, network: Network, region: Region) -> Float64[Tensor, " batches"]:
        """The largest Jacobian norm in each batch."""
        generator = torch.Generator(network.device).manual_seed(self.seed)
        together = max(1, _TOGETHER // (self.samples * math.prod(network.source)))
        found: list[Tensor] = []
        for start in range(0, self.batches, together):
            count = min(together, self.batches - start)
            x = draw_points(region, network.source, count * self.samples, generator)
            found.append(steepest(network, x, self.metric)[0].reshape(count, self.samples).amax(1))
        return torch.cat(found)

    def __str__(self) -> str:
        return f"extreme values of {self.batches} x {self.samples} gradients"


def end_point(maxima: Float64[Tensor, " batches"]) -> float:
    """The location of a reverse Weibull law fitted to maxima; never below the largest of them."""
    # Not above: it takes half a second to load, of every program that imports this package.
    from scipy import stats

    values = maxima.detach().numpy(force=True)
    largest, spread = float(values.max()), float(values.max() - values.min())
    if not spread > _SPREAD * max(largest, 1e-300):
        return largest
    scaled = (largest - values) / spread
    best = (-1.0, 0.0)
    for shape in _SHAPES:
        fit = _fit(scaled, shape)
        if fit is not None and -fit[1] <= _FAR:
            probability = float(stats.kstest(scaled, "weibull_min", args=fit).pvalue)
            best = max(best, (probability, fit[1]))
    return largest if best[0] < _REJECTED else largest - min(best[1], 0.0) * spread


def _fit(values: np.ndarray, shape: float) -> tuple[float, float, float] | None:
    from scipy import stats

    with warnings.catch_warnings():
        # The search steps through parameters without a likelihood; only where it ends is looked at.
        warnings.simplefilter("ignore")
        try:
            found: np.ndarray = np.array(stats.weibull_min.fit(values, shape), dtype=np.float64)
        except (stats.FitError, ValueError):
            return None
    return (float(found[0]), float(found[1]), float(found[2])) if np.isfinite(found).all() else None


@final
@dataclass(frozen=True, eq=False)
class Profile:
    """How numbers are distributed: estimates of a typical constant, not bounds of the constant."""

    mean: float
    deviation: float
    levels: tuple[float, ...]
    quantiles: tuple[float, ...]
    largest: float

    def __str__(self) -> str:
        shown = ", ".join(f"{100 * p:g}% {q:.5g}" for p, q in zip(self.levels, self.quantiles, strict=True))
        return f"mean {self.mean:.5g} (deviation {self.deviation:.3g}), {shown}, largest {self.largest:.5g} (estimates)"


def profile(values: Bound | Float64[Tensor, "..."], levels: tuple[float, ...] = (0.05, 0.5, 0.95)) -> Profile:
    """Mean, deviation, quantiles and maximum of a bound for each sample, or of the Jacobian norms at points.

    The mean over data of a local lower bound is the empirical local Lipschitz constant of Yang et al. 2020.
    """
    numbers = (values.value if isinstance(values, Bound) else values).detach().flatten()
    if not len(numbers) or not all(0 <= level <= 1 for level in levels):
        raise ArgumentError(f"profile needs some numbers and levels in [0, 1], got {len(numbers)} and {levels}.")
    at = torch.tensor(levels, dtype=torch.float64, device=numbers.device)
    return Profile(
        float(numbers.mean()),
        float(numbers.std(correction=0)),
        levels,
        tuple(torch.quantile(numbers, at).tolist()),
        float(numbers.max()),
    )
