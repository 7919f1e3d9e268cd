"""Usable information: how much of its inputs a model can use to tell their labels, in all and for each sample."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.analysis.frequencies.likelihoods import log_likelihoods, log_prior
from lipkit.data import Examples
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True, eq=False)
class UsableInformation:
    """log(Q(y | x) / P(y)) of each sample, in nats: below zero where the model does worse than without its input.

    A small number says that a sample is hard for this kind of model; a mean over a class or a slice, how hard that is.
    """

    each: Float64[Tensor, " samples"]

    @property
    def value(self) -> float:
        """The mean: what the inputs tell about the labels, to this model."""
        return float(self.each.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of `value`, for other samples of the same law."""
        return float(self.each.std()) / math.sqrt(len(self.each))


def usable_information(
    model: nn.Module, examples: Examples, prior: Float[Tensor, " classes"], batch: int = 1024
) -> UsableInformation:
    """V-information of inputs and labels, I_V(X -> Y) = H_V(Y) - H_V(Y | X), and its value for each sample.

    H_V(Y | X) is the least cross-entropy that models of a kind V reach, and H_V(Y) that without an input. `model` and
    `prior` stand for the two best, so they must be fitted to other data than `examples`. The mean is then at most
    I_V in expectation, and so at most the mutual information, if `prior` is the law of the labels; a prior that is not
    adds its divergence from it. Unlike mutual information it is not symmetric, and a computation can raise it.
    The model runs in evaluation mode, without gradients.

    Guarantee: ESTIMATE with a standard error. Cost: one forward pass.
    Reference: Xu, Zhao, Song, Stewart, Ermon 2020; Ethayarajh, Choi, Swayamdipta 2022 for single samples; named in
    Bethune 2024, section 8.3.4.

    Args:
        model: Maps a batch of inputs to logits.
        examples: Samples that neither model nor prior were fitted to, two at least.
        prior: The shares of the classes in the training data.
        batch: The most samples in one forward pass.
    """
    if batch < 1 or len(examples) < 2:
        raise ArgumentError(
            f"A standard error needs two samples, and batch is at least 1, got {len(examples)}, {batch}."
        )
    labels = examples.labels.long()
    known = log_prior(labels, prior)
    pairs = zip(examples.inputs.split(batch), labels.split(batch), strict=True)
    with torch.no_grad(), evaluating(model):
        found = torch.cat([log_likelihoods(model, x, y) for x, y in pairs])
    return UsableInformation(found - known.to(found))
