"""How strong a perturbation is at each frequency, and how much it changes predictions."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.analysis.frequencies.frequency_bands import Images, check_images
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


class MeanPredictionError(NamedTuple):
    """A mean over images, and its standard error."""

    value: float
    standard_error: float


def energy_density(images: Images) -> Float64[Tensor, "batch radii"]:
    """The mean of |F(x)|^2 over the frequencies of each whole radius (rounded, in cycles per image), and over channels.

    F is the orthonormal transform: white noise of variance s^2 has the density s^2 everywhere. With the transform of
    Luo 2025, equation 6.13, it is height width s^2.

    Guarantee: exact up to rounding. Densities times numbers of frequencies sum to |x|^2. Cost: one transform.
    """
    height, width = check_images(images)
    down, across = (torch.fft.fftfreq(n, 1 / n, dtype=torch.float64) for n in (height, width))
    radius = torch.hypot(*torch.broadcast_tensors(down[:, None], across)).round().long().flatten().to(images.device)
    energy = torch.fft.fft2(images.double(), norm="ortho").abs().square()
    flat = energy.reshape(len(images), -1, height * width).mean(1)
    sums = flat.new_zeros(len(images), int(radius.max()) + 1).index_add(1, radius, flat)
    return sums / radius.bincount()


def spectral_snr(images: Images, perturbations: Float[Tensor, "others ..."]) -> Float64[Tensor, "batch radii"]:
    """10 log10 of the energy density of images over that of perturbations, at each radius, in dB.

    +inf where only the image has energy, -inf where only the perturbation has. Reference: Luo 2025, section 6.1.
    """
    if images.shape != perturbations.shape:
        raise ShapeError(
            f"Perturbations have the shape of the images, got {tuple(perturbations.shape)} for {tuple(images.shape)}."
        )
    signal, noise = energy_density(images), energy_density(perturbations)
    if bool(((signal == 0) & (noise == 0)).any()):
        raise NonFiniteError("At some radius neither image nor perturbation has energy, so there is no ratio there.")
    return 10 * (signal / noise).log10()


def scale_energy(perturbations: Images, images: Images, share: float = 0.1) -> Images:
    """Perturbations scaled so that |dx|^2 = share |x|^2 for each image. Reference: Luo 2025, section 6.1."""
    check_images(images)
    check_images(perturbations)
    if not 0 < share < math.inf or images.shape != perturbations.shape:
        raise ArgumentError(
            f"share is a number > 0 and shapes agree, got {share}, {tuple(perturbations.shape)}, {tuple(images.shape)}."
        )
    sizes, lengths = (torch.linalg.vector_norm(x.double().flatten(1), dim=1) for x in (perturbations, images))
    if not bool((sizes > 0).all()):
        raise ArgumentError("Some perturbations are zero, so no factor gives them energy; leave them out.")
    factors = math.sqrt(share) * lengths / sizes
    return (perturbations.double() * factors.view(-1, *[1] * (images.ndim - 1))).to(perturbations.dtype)


def mean_prediction_error(
    model: nn.Module,
    images: Float[Tensor, "images *rest"],
    perturbed: Float[Tensor, "images *rest"],
    labels: Int[Tensor, " images"],
    batch: int = 1024,
) -> MeanPredictionError:
    """Mean of |Q(y | x) - Q(y | x + dx)| over images, Q the softmax of the logits, y the label; in [0, 1].

    The model runs in evaluation mode, without gradients. Guarantee: ESTIMATE. Reference: Luo 2025, definition 6.4.1.
    """
    if batch < 1 or len(images) < 2:
        raise ArgumentError(f"A standard error needs two images, and batch is at least 1, got {len(images)}, {batch}.")
    found: list[Tensor] = []
    with torch.no_grad(), evaluating(model):
        for at in torch.arange(len(images), device=images.device).split(batch):
            before, after = (model(x[at]).double().softmax(1) for x in (images, perturbed))
            truth = labels.to(images.device).long()[at]
            if int(truth.min()) < 0 or int(truth.max()) >= before.shape[1]:
                raise ArgumentError(
                    f"Labels lie in 0..{before.shape[1] - 1}, got {int(truth.min())}..{int(truth.max())}."
                )
            found.append((before - after).gather(1, truth[:, None])[:, 0].abs())
    each = torch.cat(found)
    if not bool(torch.isfinite(each).all()):
        raise NonFiniteError("The model gave NaN or infinite logits; check its weights and the images.")
    return MeanPredictionError(float(each.mean()), float(each.std()) / math.sqrt(len(each)))
