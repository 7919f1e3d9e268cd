"""Noise laws, and how far the shares of classes can move when the input moves."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from torch import Tensor

from lipkit.certify.smoothing.ramp import quantile_above, quantile_below
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_16

# Near the least normal number: smaller shares count as this one where that makes a radius smaller.
_TINY: Final = 1e-300


@runtime_checkable
class Source(Protocol):
    """Where random numbers come from: a stream that depends on a seed, an image and a block alone."""

    def normal(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Independent standard normal numbers, on the device and in the type of the inputs."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Independent numbers, uniform in the open interval (0, 1)."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Constants:
    """Lipschitz constants of the votes of each input, divided by their mass: one output, and a difference of two."""

    coordinate: Float64[Tensor, " batch"]
    pair: Float64[Tensor, " batch"]


@final
@dataclass(frozen=True, eq=False)
class PairRadii:
    """A radius for each rival, and which of the noise's `rules` proves it."""

    value: Float64[Tensor, "batch classes"]
    rule: Int64[Tensor, "batch classes"]


class Noise(ABC):
    """The law of the noise that is added to inputs; its radii are in l_`p`."""

    @property
    @abstractmethod
    def p(self) -> float:
        """The norm of the radii."""

    @property
    @abstractmethod
    def rules(self) -> tuple[str, ...]:
        """The names of the theorems that give radii."""

    @abstractmethod
    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        """Noise of that shape from the numbers of `source`."""

    @abstractmethod
    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        """For each rival, how far the input may move while the label's share stays above the rival's.

        The largest over the rules, rival by rival; <= 0 where nothing is proven. Rises with `lower`, falls with
        `upper`. That no rival has more than 1 - `lower` is the caller's to say: votes sum to 1 up to their own
        rounding only, which an `Event` counts. Guarantee: rounded down, never +inf.
        """


@final
@dataclass(frozen=True)
class Gaussian(Noise):
    """Normal noise of standard deviation sigma in every coordinate; radii in l2.

    With shares p and rivals k, M_w^-1 the quantile of `ramp.py`, w the width of a ramp with the constant of the votes:

        quantile:         sigma/2 (Phi^-1(p_y) - Phi^-1(p_k)),                          votes with values in [0, 1]
        coordinate ramp:  sigma/2 (M_w^-1(p_y) - M_w^-1(p_k)),   w = 1/(L(F_k) sigma)
        margin ramp:      sigma M_w^-1((1 + p_y - p_k)/2),       w = 2/(L(F_y - F_k) sigma)

    Proof: sigma M_w^-1 of a share moves by at most the distance. So p_y stays above p_k until the two numbers that
    start 2R apart meet. The last rule is the same for h = (1 + F_y - F_k)/2 alone, which wins while it is above 1/2.
    The ramps need constants. The coordinate ramp is at least the quantile rule, up to rounding; which ramp is larger
    depends on the shares. Together they are at least all published radii for such votes, and those of votes without
    noise.

    Reference: Cohen, Rosenfeld, Kolter 2019 (first rule); Delattre 2025, theorem 4.6.5; the two ramps are ours.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check_scale("standard deviation sigma", self.sigma)

    @property
    def p(self) -> float:
        return 2.0

    @property
    def rules(self) -> tuple[str, ...]:
        return ("quantile", "coordinate ramp", "margin ramp")

    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        return self.sigma * source.normal(shape)

    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        low, high = _shares(lower, upper)
        rules = [self._apart(low, high, np.zeros(1))]
        if constants is not None:
            coordinate, pair = self._width(constants.coordinate, 1.0), self._width(constants.pair, 2.0)
            rules += [self._apart(low, high, coordinate), self._margin(low, high, pair)]
        return _largest(rules, upper)

    def _apart(self, low: ndarray, high: ndarray, width: ndarray) -> ndarray:
        return self.sigma / 2 * (quantile_below(low, width) - quantile_above(high, width))

    def _margin(self, low: ndarray, high: ndarray, width: ndarray) -> ndarray:
        # The share of 1 - h: a sum of positive numbers has all its digits, 1 + p_y - p_k has not.
        lost = np.minimum(((1 - low) + high) / 2 * (1 + ROUNDINGS_8), 1.0)
        return -self.sigma * quantile_above(lost, width)

    def _width(self, constant: Tensor, rise: float) -> ndarray:
        values = _column(constant)
        if not (values >= 0).all():
            raise ArgumentError(f"Lipschitz constants of votes are numbers >= 0, got {values.min()}.")
        # A constant of nearly 0 has a width beyond all numbers.
        with np.errstate(divide="ignore", over="ignore"):
            return rise / (values * self.sigma) * (1 - ROUNDINGS_8)


@final
@dataclass(frozen=True)
class Uniform(Noise):
    """Uniform noise on [-half_width, half_width] in every coordinate; radii in l1: half_width (p_y - p_k).

    Proof: cubes of side 2 lambda whose centres differ by d overlap in a share prod(1 - |d_i|/(2 lambda)) of their
    volume, at least 1 - |d|_1/(2 lambda). So a mean of values in [-1, 1], such as F_y - F_k, moves by at most
    |d|_1/lambda. With p_k = 1 - p_y the radius is 2 lambda (p_y - 1/2), and one coordinate attains it.
    Reference: Yang, Duan, Hu, Salman, Razenshteyn, Li 2020; for two classes Lee, Yuan, Chang, Jaakkola 2019.
    """

    half_width: float

    def __post_init__(self) -> None:
        _check_scale("half width", self.half_width)

    @property
    def p(self) -> float:
        return 1.0

    @property
    def rules(self) -> tuple[str, ...]:
        return ("overlap",)

    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        return self.half_width * (2 * source.uniform(shape) - 1)

    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        low, high = _shares(lower, upper)
        return _largest([self.half_width * (low - high)], upper)


@final
@dataclass(frozen=True)
class Laplace(Noise):
    """Noise of density exp(-|t|/scale)/(2 scale) in every coordinate; radii in l1.

        ratio:   scale/2 log(p_y / p_k)
        margin:  -scale log(1 - p_y + p_k)

    Proof: a move by d changes the density by factors within exp(-+|d|_1/scale), so means of values in [0, 1] change
    by such factors too. Ratio: of F_y down and F_k up. Margin: of 1 - h up, h = (1 + F_y - F_k)/2, which starts at
    (1 - p_y + p_k)/2 and loses while it is below 1/2.
    Reference: Teng, Lee, Yuan 2020; Lecuyer, Atlidakis, Geambasu, Hsu, Jana 2019 for the ratio.
    """

    scale: float

    def __post_init__(self) -> None:
        _check_scale("scale", self.scale)

    @property
    def p(self) -> float:
        return 1.0

    @property
    def rules(self) -> tuple[str, ...]:
        return ("ratio", "margin")

    def draw(self, source: Source, shape: tuple[int, ...]) -> Float[Tensor, "..."]:
        # The difference of two exponential variables; logarithms of (0, 1) keep both tails.
        return self.scale * (source.uniform(shape).log() - source.uniform(shape).log())

    def radii(
        self, lower: Float64[Tensor, " batch"], upper: Float64[Tensor, "batch classes"], constants: Constants | None
    ) -> PairRadii:
        low, high = _shares(lower, upper)
        with np.errstate(divide="ignore"):
            ratio, lost = np.log(low) - np.log(np.maximum(high, _TINY)), np.log((1 - low) + high)
        # Each logarithm is within a few roundings of its own size, or of one.
        slack = ROUNDINGS_16 * (1 + np.abs(np.log(np.maximum(high, _TINY))))
        return _largest(
            [self.scale / 2 * (ratio - slack), self.scale * (-np.maximum(lost, np.log(_TINY)) - slack)], upper
        )


def _shares(lower: Tensor, upper: Tensor) -> tuple[ndarray, ndarray]:
    """The shares as arrays that broadcast."""
    low, high = _column(lower), upper.detach().cpu().numpy()
    for name, share in (("lower", low), ("upper", high)):
        if not ((share >= 0) & (share <= 1)).all():
            raise ArgumentError(f"Shares lie in [0, 1], got `{name}` from {share.min()} to {share.max()}.")
    return low, high


def _column(values: Tensor) -> ndarray:
    return values.detach().cpu().numpy()[:, None]


def _largest(rules: list[ndarray], like: Tensor) -> PairRadii:
    values = np.stack(np.broadcast_arrays(*rules))
    best = values.argmax(0)
    value = np.take_along_axis(values, best[None], 0)[0]
    value = value - np.abs(value) * ROUNDINGS_8
    return PairRadii(torch.from_numpy(value).to(like.device), torch.from_numpy(best).to(like.device))


def _check_scale(what: str, value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise ArgumentError(f"The {what} of a noise is a finite number > 0, got {value}.")
