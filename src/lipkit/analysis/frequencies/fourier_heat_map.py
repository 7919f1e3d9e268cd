"""Which single wave, added to images, makes a classifier err: one number for each frequency of the plane."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit._seeds import generator
from lipkit.analysis.frequencies.frequency_bands import check_images
from lipkit.analysis.frequencies.likelihoods import check_classes, logits_of
from lipkit.errors import ArgumentError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class FourierHeatMap:
    """`errors[a, b]` is the share of images that are classified wrongly with the wave `down[a]`, `across[b]` added.

    Frequencies are in cycles per image, in increasing order, zero in the middle. A wave and its negative are one.
    `clean` is the error without a wave. Standard errors are at most (1/4 / images)^(1/2).
    """

    errors: Float64[Tensor, "height width"]
    down: Int[Tensor, " height"]
    across: Int[Tensor, " width"]
    clean: float
    length: float
    images: int


def fourier_heat_map(
    model: nn.Module,
    images: Float[Tensor, "images *channels height width"],
    labels: Int[Tensor, " labels"],
    length: float,
    batch: int = 1024,
    seed: int = 0,
) -> FourierHeatMap:
    """The error of a classifier when one wave of a length is added to each image, for every frequency.

        x + length e / channels^(1/2),   e = c cos(2 pi (u i / height + v j / width) + p),

    with a random phase p for each image and channel, and c so that e has length 1: all moves are of one length, and a
    shift of the images changes nothing. A frequency that is its own negative has a random sign in the place of p.
    Nothing is clipped. The model runs in evaluation mode, without gradients.

    Guarantee: a diagnostic, an ESTIMATE for other images. Cost: height width / 2 forward passes for each image.
    Reference: Tsuzuku, Sato 2019 and Yin et al. 2019, with one phase for all.

    Args:
        model: Maps a batch of images to logits.
        images: At least one.
        labels: Of the images.
        length: l2 length of the whole perturbation of an image.
        batch: The most images in one forward pass.
        seed: Of the phases.
    """
    height, width = check_images(images)
    if labels.shape != images.shape[:1]:
        raise ShapeError(f"One label for each image is needed, got {tuple(labels.shape)} for {len(images)}.")
    if not 0 < length < math.inf or batch < 1:
        raise ArgumentError(f"A length is a number > 0, and batch is at least 1, got {length} and {batch}.")
    truth, source = labels.to(images.device).long(), generator(seed)
    down, across = torch.arange(height) - height // 2, torch.arange(width) - width // 2
    channels = math.prod(images.shape[1:-2])
    errors = torch.zeros(height, width, dtype=torch.float64)
    with torch.no_grad(), evaluating(model):
        clean = _error(model, images, truth, batch)
        for a, u in enumerate(down.tolist()):
            for b, v in enumerate(across.tolist()):
                mirror = (-u + height // 2) % height, (-v + width // 2) % width
                if mirror < (a, b):
                    errors[a, b] = errors[mirror]
                    continue
                phases = 2 * math.pi * torch.rand(images.shape[:-2], dtype=torch.float64, generator=source)
                if mirror == (a, b):
                    phases = math.pi * (phases < math.pi).double()
                cosine, sine = (wave * (length / math.sqrt(channels)) for wave in _waves(height, width, u, v))
                moves = phases.cos()[..., None, None] * cosine - phases.sin()[..., None, None] * sine
                errors[a, b] = _error(model, images + moves.to(images), truth, batch)
    return FourierHeatMap(errors, down, across, clean, length, len(images))


def _waves(
    height: int, width: int, u: int, v: int
) -> tuple[Float64[Tensor, "height width"], Float64[Tensor, "height width"]]:
    """The cosine of u cycles down and v across, of length 1, and the sine beside it; zero where there is none."""
    # Whole turns are taken out before anything is rounded.
    rows, columns = u * torch.arange(height) % height, v * torch.arange(width) % width
    phase = 2 * math.pi * (rows[:, None].double() / height + columns.double() / width)
    if 2 * u % height == 0 and 2 * v % width == 0:
        return phase.cos() / math.sqrt(height * width), torch.zeros_like(phase)
    factor = math.sqrt(2 / (height * width))
    return factor * phase.cos(), factor * phase.sin()


def _error(model: nn.Module, images: Tensor, labels: Tensor, batch: int) -> float:
    wrong = 0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        logits = logits_of(model, x)
        check_classes(y, logits.shape[1])
        # NaN is no answer.
        right = (logits.argmax(1) == y) & torch.isfinite(logits).all(1)
        wrong += int((~right).sum())
    return wrong / len(images)
