"""Activation decay compared with the noise that it replaces, by Monte Carlo."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from lipkit._seeds import normal
from lipkit.errors import ArgumentError
from lipkit.regularizers.activations.activation_decay import HeadDecay


class GradientAgreement(NamedTuple):
    """A comparison of two gradients: the cosine of their angle, and the norm of the first over the second."""

    cosine: Tensor
    ratio: Tensor


class SmoothingGap(NamedTuple):
    """Monte Carlo against decay: `gap` = mean of the noisy losses - the decayed loss, with its standard error.

    `weight` compares gradients in the head's weight, where the penalty of activation decay has none, so the decayed
    gradient is the plain one there; `hidden` compares those in the features, where the decay acts.
    """

    gap: Tensor
    error: Tensor
    weight: GradientAgreement
    hidden: GradientAgreement


def smoothing_gap(
    head: nn.Linear,
    hidden: Float[Tensor, "samples features"],
    target: Int64[Tensor, " samples"],
    decay: HeadDecay,
    sigma: float,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> SmoothingGap:
    """Loss and gradients under noise Delta_ij ~ N(0, sigma^2) on the head's weight, against CE + `decay`, in float64.

    One matrix Delta a draw for the whole batch. For `ActivationDecay(sigma)` the expected gap is never positive.

    Guarantee: an estimate, `error` its standard deviation. Cost: `draws` forward and backward passes of the head.
    Reference: Delattre 2025, appendix D.1.1; the comparison in the features is ours.
    """
    if draws < 2:
        raise ArgumentError(f"A standard error needs at least 2 draws, got {draws}.")
    weight = head.weight.detach().double().requires_grad_()
    bias = None if head.bias is None else head.bias.detach().double()
    features = hidden.detach().double().requires_grad_()
    with torch.enable_grad():
        logits = functional.linear(features, weight, bias)
        decayed = functional.cross_entropy(logits, target) + decay.each(features, logits).mean()
        surrogate = torch.autograd.grad(decayed, (weight, features))
        losses: list[Tensor] = []
        sums = [torch.zeros_like(weight), torch.zeros_like(features)]
        for _ in range(draws):
            noise = sigma * normal(weight, generator)
            loss = functional.cross_entropy(functional.linear(features, weight + noise, bias), target)
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(loss, (weight, features)), strict=True)]
            losses.append(loss.detach())
    values = torch.stack(losses)
    agreements = [_agreement(a / draws, b) for a, b in zip(sums, surrogate, strict=True)]
    return SmoothingGap(values.mean() - decayed.detach(), values.std() / draws**0.5, *agreements)


def _agreement(first: Tensor, second: Tensor) -> GradientAgreement:
    a, b = torch.linalg.vector_norm(first), torch.linalg.vector_norm(second)
    return GradientAgreement((first * second).sum() / (a * b), a / b)
