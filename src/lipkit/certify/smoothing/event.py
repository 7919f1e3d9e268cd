"""Confidence events: what is known of the smoothed outputs, and how surely."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from lipkit.certify.smoothing.noise import Constants, Noise, PairRadii
from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.simplex_maps import SimplexMap
from lipkit.rounding.slacks import ROUNDINGS_8


@final
@dataclass(frozen=True, eq=False)
class Event:
    """Bounds of the smoothed outputs p = E tau(f(x + noise)) / r of a batch, with one probability of failure.

    For every input and every FIXED rival k: with probability at least 1 - alpha over the n samples, both
    p_label >= `lower` and p_k <= `upper[k]` hold. That is enough for radii that are a minimum over rivals of a function
    which rises with p_label and falls with p_k: let k be the rival at which the minimum of the true values is taken.
    It does not depend on the n samples; where both bounds hold, the computed radius is at most the entry of k, which is
    at most the true one. No union over rivals is needed (our derivation).

    Args:
        label: The class that is certified, chosen without the n samples.
        lower: A lower bound of the share of `label`.
        upper: Upper bounds of the shares of all classes; the entry of `label` is 1 and is not used.
        maps: The simplex map behind the shares of each input.
    """

    label: Int64[Tensor, " batch"]
    lower: Float64[Tensor, " batch"]
    upper: Float64[Tensor, "batch classes"]
    maps: tuple[SimplexMap, ...]


@final
@dataclass(frozen=True)
class Theorem:
    """Turns shares into radii: the law of the noise and, where one is known, a constant of the base network.

    Args:
        noise: The law of the noise.
        lipschitz: An upper bound of the l2 constant of the logits, everywhere.
    """

    noise: Noise
    lipschitz: float | None = None

    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], maps: tuple[SimplexMap, ...]
    ) -> PairRadii:
        """A radius for each rival, with the constants of each input's map. Guarantee: rounded down."""
        if self.lipschitz is None:
            return self.noise.radii(lower, upper, None)
        coordinate = lower.new_tensor([self._constant(one.coordinate, one) for one in maps])
        pair = lower.new_tensor([self._constant(one.pair, one) for one in maps])
        return self.noise.radii(lower, upper, Constants(coordinate, pair))

    def _constant(self, stretch: float, simplex: SimplexMap) -> float:
        # A map without a constant has none in front of a constant network either.
        if self.lipschitz is None or math.isinf(stretch):
            return math.inf
        return stretch / simplex.mass * self.lipschitz * (1 + ROUNDINGS_8)

    def radius(self, event: Event) -> Float64[Tensor, " batch"]:
        """The radius that `event` proves: the smallest over the rivals, and <= 0 where nothing is proven."""
        radii = self.radii(event.lower, event.upper, event.maps).value
        return radii.scatter(1, event.label[:, None], torch.inf).amin(1)


class Method(ABC):
    """A way to spend the error probability alpha: from samples to an event."""

    @abstractmethod
    def event(self, samples: Samples, alpha: float, theorem: Theorem) -> Event:
        """The bounds that hold together with probability 1 - `alpha`, for each input by itself.

        `theorem` is for methods that choose something by the radius they expect. They look at `Samples.selection` for
        that, never at the samples that prove.
        """
