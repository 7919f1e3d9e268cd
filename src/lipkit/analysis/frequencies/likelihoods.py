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
