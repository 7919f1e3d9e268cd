"""The difference between risks on data that were seen and on data that were not, as it is measured."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.data import Examples
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


class GeneralizationGap(NamedTuple):
    """The empirical risk on the training data, the mean loss on other data, and the standard error of this mean."""

    train: float
    test: float
    standard_error: float

    @property
    def value(self) -> float:
        """|test - train|."""
        return abs(self.test - self.train)


def generalization_gap(
    model: nn.Module,
    train: Examples,
    test: Examples,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: int = 1024,
) -> GeneralizationGap:
    """|R(f, D) - R(f, mu)|, where the population risk R(f, mu) is estimated by the mean loss on test data.

    The risk on D is that of these samples, without an error; the other one has the standard error of a mean. For a
    random training algorithm average over trainings. The model runs in evaluation mode, without gradients.

    Guarantee: ESTIMATE, unbiased if the test data had no part in the training, before the absolute value is taken.
    Cost: one forward pass of both sets. Reference: Bethune 2024, (8.9) to (8.13).

    Args:
        model: f.
        train: D, the data that f was fitted to.
        test: Independent draws of mu, two at least.
        loss: Maps outputs and labels to one number for each sample, such as `CrossEntropyLoss(reduction="none")`; for
            the gap of accuracies, 1 where the class is wrong.
        batch: The most samples in one forward pass.
    """
    if batch < 1 or len(train) < 1 or len(test) < 2:
        raise ArgumentError(
            "A gap needs a sample to train, two to test and a batch of at least 1, got "
            f"{len(train)}, {len(test)} and {batch}."
        )
    seen, unseen = (_losses(model, examples, loss, batch) for examples in (train, test))
    error = float(unseen.std()) / math.sqrt(len(unseen))
    return GeneralizationGap(float(seen.mean()), float(unseen.mean()), error)


def _losses(
    model: nn.Module, examples: Examples, loss: Callable[[Tensor, Tensor], Tensor], batch: int
) -> Float64[Tensor, " count"]:
    found: list[Tensor] = []
    with torch.no_grad(), evaluating(model):
        for x, y in zip(examples.inputs.split(batch), examples.labels.split(batch), strict=True):
            each = loss(model(x), y)
            if each.shape != y.shape:
                raise ShapeError(
                    f"The loss must give one number for each sample, {tuple(y.shape)}, got {tuple(each.shape)}; "
                    'build it with reduction="none".'
                )
            found.append(each.double())
    whole = torch.cat(found)
    if not bool(torch.isfinite(whole).all()):
        raise NonFiniteError("Some losses are NaN or infinite; check the model and the data.")
    return whole
