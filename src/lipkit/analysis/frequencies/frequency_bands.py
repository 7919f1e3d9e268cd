"""Bands of the spectrum of images: rings around frequency zero, and filters that keep some of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from lipkit._seeds import generator, normal
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

Images = Float[Tensor, "batch *channels height width"]

# Cutoffs such as 0.29 are no binary fractions; a frequency that lies on one is not lost by rounding.
_ON_THE_CUTOFF = 1e-12


class Rings(ABC):
    """A definition of radius in the plane of frequencies. Radius 1 is half a cycle per pixel along an axis."""

    @abstractmethod
    def radius(self, down: Float64[Tensor, "h 1"], across: Float64[Tensor, " w"]) -> Float64[Tensor, "h w"]:
        """The radius at frequencies that are given as shares of the largest one."""

    @abstractmethod
    def band(self, size: tuple[int, int], count: int) -> Int64[Tensor, "height half"]:
        """The band of each frequency of a real transform, min(floor(count radius), count - 1), in whole numbers."""


@final
@dataclass(frozen=True)
class SquareRings(Rings):
    """Radius max(|u|, |v|): every frequency has one of at most 1. Reference: Luo 2025, section 6.3.1."""

    def radius(self, down: Float64[Tensor, "h 1"], across: Float64[Tensor, " w"]) -> Float64[Tensor, "h w"]:
        return torch.maximum(down, across)

    def band(self, size: tuple[int, int], count: int) -> Int64[Tensor, "height half"]:
        down, across = _whole_frequencies(size)
        height, width = size
        ring = torch.maximum(2 * count * down // height, 2 * count * across // width)
        return ring.clamp(max=count - 1)


@final
@dataclass(frozen=True)
class RoundRings(Rings):
    """Radius (u^2 + v^2)^(1/2). Corners lie beyond 1 and belong to the last band, so that bands sum to the image."""

    def radius(self, down: Float64[Tensor, "h 1"], across: Float64[Tensor, " w"]) -> Float64[Tensor, "h w"]:
        return torch.hypot(*torch.broadcast_tensors(down, across))

    def band(self, size: tuple[int, int], count: int) -> Int64[Tensor, "height half"]:
        down, across = _whole_frequencies(size)
        height, width = size
        # floor(x / d)^2 <= X / d^2 for X = x^2: squares are compared, because roots round.
        square = 4 * count**2 * ((down * width) ** 2 + (across * height) ** 2) // (height * width) ** 2
        ends = torch.arange(1, count) ** 2
        return torch.bucketize(square, ends, right=True)


class Baseline(ABC):
    """The values that replace an absent band."""

    @abstractmethod
    def images(self, given: Images) -> Images | None:
        """One image for each given one, whose bands fill in; None for nothing."""


@final
@dataclass(frozen=True)
class ZeroBaseline(Baseline):
    """Nothing: an absent band is zero."""

    def images(self, given: Images) -> None:
        return None


@final
@dataclass(frozen=True)
class GaussianBaseline(Baseline):
    """Complex Gaussian coefficients b with E|b|^2 = deviation^2 and b(-w) = conj b(w), so that images stay real.

    Away from frequencies that are their own negatives, real and imaginary part have variance deviation^2 / 2 each. In
    pixels this is white noise of deviation / (height width)^(1/2). Reference: Luo 2025, section 6.B.2.

    Args:
        deviation: Of a coefficient of the transform without a factor in front of its sum.
        seed: Of the noise.
    """

    deviation: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.deviation < float("inf"):
            raise ArgumentError(f"The deviation of a baseline is a number > 0, got {self.deviation}.")

    def images(self, given: Images) -> Images:
        height, width = given.shape[-2:]
        return normal(given, generator(self.seed)) * (self.deviation / (height * width) ** 0.5)


@final
@dataclass(frozen=True)
class ReplacementBaseline(Baseline):
    """The same band of another image of the set, drawn at random, never of the image itself."""

    seed: int = 0

    def images(self, given: Images) -> Images:
        count = len(given)
        if count < 2:
            raise ArgumentError(f"Bands of another image need at least two images, got {count}.")
        step = torch.randint(1, count, (count,), generator=generator(self.seed))
        return given[((torch.arange(count) + step) % count).to(given.device)]


def bands(
    images: Images, count: int, rings: Rings = SquareRings()
) -> Float[Tensor, "count batch *channels height width"]:
    """The parts of images in `count` rings of frequencies, from the lowest; they sum to the images.

        part_i = F^-1[F(x) on {w: min(floor(count rho(w)), count - 1) = i}],   rho(w) = the radius of `rings`.

    Guarantee: a linear projection, up to rounding of the transform; real, because rings are symmetric about zero. The
    mean of an image lies in band 0. Cost: one transform for each image, and one back for each band.
    Reference: Luo 2025, section 6.3.1; the rule for sizes that `count` does not divide is ours.
    """
    size = check_images(images)
    ring = check_bands(size, count, rings).to(images.device)
    spectrum = _transform(images)
    kept = (ring == torch.arange(count, device=ring.device)[:, None, None]).to(spectrum.real.dtype)
    parts = torch.fft.irfft2(spectrum * kept.reshape(count, *[1] * (images.ndim - 2), *ring.shape), s=size)
    return parts.to(images.dtype)


def low_pass(
    images: Images, cutoff: float, rings: Rings = SquareRings(), baseline: Baseline = ZeroBaseline()
) -> Images:
    """Images with the frequencies of radius at most `cutoff`; the others come from `baseline`.

    With square rings a cutoff of 1 keeps all; with round ones the corners reach to 2^(1/2).

    Guarantee: a linear filter, exact up to rounding. Cost: two transforms. Reference: Luo 2025, section 5.4.
    """
    return _filtered(images, _inside(images, cutoff, rings), baseline)


def high_pass(
    images: Images, cutoff: float, rings: Rings = SquareRings(), baseline: Baseline = ZeroBaseline()
) -> Images:
    """Images with the frequencies of radius above `cutoff`; the others come from `baseline`. With `low_pass`: all."""
    return _filtered(images, ~_inside(images, cutoff, rings), baseline)


def check_images(images: Tensor) -> tuple[int, int]:
    """Height and width, if these are finite images."""
    if images.ndim < 3 or images.numel() == 0 or not images.is_floating_point():
        raise ShapeError(
            f"Images are floating point of shape (batch, ..., height, width), got {images.dtype} of shape "
            f"{tuple(images.shape)}."
        )
    if not bool(torch.isfinite(images).all()):
        raise NonFiniteError("Some images are NaN or infinite; clean the data first.")
    return images.shape[-2], images.shape[-1]


def check_bands(size: tuple[int, int], count: int, rings: Rings) -> Int64[Tensor, "height half"]:
    """The band of each frequency, if there are two at least and none is empty."""
    if count < 2:
        raise ArgumentError(f"A spectrum is divided into at least two bands, got {count}.")
    ring = rings.band(size, count)
    missing = _empty_bands(ring, count)
    if missing:
        # Of more bands than pixels in a row, the second is below the lowest frequency.
        fewer = (n for n in range(min(count - 1, max(size)), 1, -1) if not _empty_bands(rings.band(size, n), n))
        most = next(fewer, None)
        remedy = "take larger images" if most is None else f"the next smaller number that is possible is {most}"
        raise ArgumentError(
            f"Images of {size[0]} x {size[1]} pixels have no frequency in band {missing[0]} of {count} (the lowest is "
            f"band 0); {remedy}."
        )
    return ring


def _empty_bands(ring: Int64[Tensor, "height half"], count: int) -> list[int]:
    return sorted(set(range(count)) - set(ring.unique().tolist()))


def _whole_frequencies(size: tuple[int, int]) -> tuple[Int64[Tensor, "h 1"], Int64[Tensor, " half"]]:
    """Cycles per image, without sign, in the order of a real transform."""
    height, width = size
    rows = torch.arange(height)
    return torch.minimum(rows, height - rows)[:, None], torch.arange(width // 2 + 1)


def _inside(images: Tensor, cutoff: float, rings: Rings) -> Bool[Tensor, "height half"]:
    height, width = check_images(images)
    if not 0 <= cutoff < float("inf"):
        raise ArgumentError(f"A cutoff is a radius >= 0, where 1 is half a cycle per pixel, got {cutoff}.")
    down, across = _whole_frequencies((height, width))
    radius = rings.radius(2 * down.double() / height, 2 * across.double() / width)
    return (radius <= cutoff * (1 + _ON_THE_CUTOFF)).to(images.device)


def _filtered(images: Images, keep: Bool[Tensor, "height half"], baseline: Baseline) -> Images:
    spectrum = _transform(images) * keep
    filling = baseline.images(images)
    if filling is not None:
        spectrum = spectrum + _transform(filling) * ~keep
    return torch.fft.irfft2(spectrum, s=images.shape[-2:]).to(images.dtype)


def _transform(images: Images) -> Tensor:
    """The real transform, in float32 at least: there is none in half precision."""
    return torch.fft.rfft2(images.to(torch.promote_types(images.dtype, torch.float32)))
