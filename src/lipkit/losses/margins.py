"""Margins of a classifier: how far the true class leads, right at ties, with finite gradients."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lipkit._compilers import is_compiling
from lipkit.errors import ArgumentError, ShapeError


def check_classes(logits: Tensor, target: Tensor) -> None:
    """Refuse what is not (batch, classes >= 2) logits with (batch,) integer labels in 0..classes - 1.

    On a GPU the range of the labels is not looked at: that would wait for it in every step.
    """
    check_logits(logits)
    if target.shape != logits.shape[:1]:
        raise ShapeError(
            f"Labels have shape ({logits.shape[0]},), one index for each sample, got {tuple(target.shape)}; "
            "take the argmax of one-hot labels."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ArgumentError(f"Labels are integers, got {target.dtype}; convert them with `.long()`.")
    if target.device.type == "cpu" and not is_compiling() and len(target):
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= logits.shape[1]:
            raise ArgumentError(
                f"Labels lie in 0..{logits.shape[1] - 1}, got {low}..{high}; number the classes from 0, and leave out "
                "samples without a class."
            )


def check_probabilities(logits: Tensor, target: Tensor) -> None:
    """Refuse targets that are not one probability for each sample and class; their sums are looked at on CPUs only."""
    check_logits(logits)
    if target.shape != logits.shape or not target.is_floating_point():
        raise ShapeError(
            f"Soft labels have the shape of the logits, {tuple(logits.shape)}, in floating point, got "
            f"{tuple(target.shape)} and {target.dtype}; give (batch,) integers for hard ones."
        )
    if target.device.type == "cpu" and not torch.compiler.is_compiling() and len(target):
        off = float((target.detach().double().sum(1) - 1).abs().max())
        low = float(target.detach().min())
        # Ten classes in bfloat16 add up to 1 within 10 2^-9.
        if not (off <= 0.02 and low >= 0):
            raise ArgumentError(
                f"Soft labels are probabilities, at least 0 with sum 1, got {low:g} at least and sums off by {off:g}; "
                "apply softmax."
            )


def check_logits(logits: Tensor) -> None:
    """Refuse what is not (batch, classes >= 2)."""
    if logits.ndim == 1:
        raise ShapeError(
            f"Logits have shape (batch, classes >= 2), got {tuple(logits.shape)}; give a single sample a batch axis, "
            "logits[None] and labels[None]."
        )
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ShapeError(f"Logits have shape (batch, classes >= 2), got {tuple(logits.shape)}; flatten or transpose.")


def rivals(target: Int[Tensor, " batch"], classes: int) -> Bool[Tensor, "batch classes"]:
    """True for every class but the sample's own."""
    return target[:, None] != torch.arange(classes, device=target.device)


def of_label(values: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """The entry of each sample's own class."""
    return values.gather(1, target.long()[:, None]).squeeze(1)


def leads(logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, "batch classes"]:
    """z_y - z_j for every class j: 0 at the own class, negative where another class leads. Cost: one pass."""
    check_classes(logits, target)
    return of_label(logits, target)[:, None] - logits


def runner_up(logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """max_{j != y} z_j, by masking the own class; rivals that tie share the gradient equally."""
    check_classes(logits, target)
    return logits.masked_fill(~rivals(target, logits.shape[1]), -math.inf).amax(1)


def margins(logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """z_y - max_{j != y} z_j: positive exactly where the true class alone is the largest, 0 at a tie for it.

    Cost: one pass. The two largest entries of a sort would give a positive margin to wrong predictions.

    Args:
        logits: Scores of all classes.
        target: Class indices.
    """
    return of_label(logits, target) - runner_up(logits, target)
