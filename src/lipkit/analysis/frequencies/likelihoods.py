"""Logits of a classifier for images that were filtered or perturbed, and the likelihood of their labels."""

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def logits_of(model: nn.Module, images: Float[Tensor, "images *rest"]) -> Float64[Tensor, "images classes"]:
    """The logits of a batch, if there are at least two for each image."""
    logits = model(images)
    if not isinstance(logits, Tensor):
        raise ShapeError(
            f"The model must give one tensor of logits, got {type(logits).__name__}; wrap it to give its logits."
        )
    if logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
        raise ShapeError(f"The model must give at least two logits for each image, got shape {tuple(logits.shape)}.")
    return logits.double()


def log_likelihoods(
    model: nn.Module, images: Float[Tensor, "images *rest"], labels: Int[Tensor, " images"]
) -> Float64[Tensor, " images"]:
    """log Q(y | x) of each image, Q the softmax of the logits."""
    logits = logits_of(model, images)
    check_classes(labels, logits.shape[1])
    found = torch.log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
    if not bool(torch.isfinite(found).all()):
        raise NonFiniteError("The model gave NaN or infinite log-likelihoods for filtered images; check its weights.")
    return found


def check_classes(labels: Int[Tensor, " images"], classes: int) -> None:
    """Refuse labels of other classes than the logits have."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ArgumentError(f"Labels of {classes} classes lie in 0..{classes - 1}, got {low}..{high}.")


def log_prior(labels: Int[Tensor, " images"], shares: Float[Tensor, " classes"]) -> Float64[Tensor, " images"]:
    """log P(y) of each label, P a distribution over the classes that gives every label some probability."""
    wide = shares.detach().double().to(labels.device)
    if not (bool((wide >= 0).all()) and abs(float(wide.sum()) - 1) < 1e-4):
        raise ArgumentError(f"A prior is a distribution over the classes, got {shares.tolist()}.")
    check_classes(labels, len(wide))
    if not bool((wide[labels] > 0).all()):
        raise ArgumentError("The prior gives some label of the data no probability; every class that occurs has some.")
    return wide[labels].log()
