"""How much a change of the images, such as a filter, takes from what a classifier knows of the labels."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.analysis.frequencies.likelihoods import log_likelihoods, log_prior
from lipkit.bound import Bound
from lipkit.errors import ArgumentError, KindError, MetricError, NonFiniteError, RegionError, ShapeError
from lipkit.regions import L2, Everywhere
from lipkit.rounding.float64 import norm_up, round_up


@final
@dataclass(frozen=True, eq=False)
class InformationGap:
    """Variational information of labels and images, I = E log(Q(y | x) / P(y)), before and after a change of images.

        |before - after| = gap <= change = E|log Q(y | x) - log Q(y | x')| <= 2^(1/2) L E|x - x'|_2,

    the last one for logits with the constant L from l2 to l2: the gradient e_y - softmax of log softmax is at most
    2^(1/2) long. Numbers are in nats, of the images that were given; `standard_error` is that of `change`, for others.
    """

    before: float
    after: float
    change: float
    standard_error: float
    distances: Float64[Tensor, " images"]

    @property
    def gap(self) -> float:
        """|before - after|."""
        return abs(self.before - self.after)

    def upper_bound(self, constant: Bound) -> float:
        """2^(1/2) L times the mean distance: at least `change` of the model in exact arithmetic, so at least `gap`.

        Guarantee: UPPER, rounded up, if `constant` is a bound of the logits of the same model.
        """
        if not constant.kind.certifies:
            raise KindError(f"A bound of the gap needs an upper bound of the constant, got {constant}.")
        if constant.metric != L2:
            raise MetricError(f"Distances are lengths, so the constant is from l2 to l2, got one in {constant.metric}.")
        if constant.region != Everywhere():
            raise RegionError(f"The images may lie anywhere, and the bound holds on the {constant.region}.")
        mean = round_up(self.distances.mean(), len(self.distances) + 2)
        return float(round_up(math.sqrt(2) * constant.value.detach().max() * mean, 4))


def information_gap(
    model: nn.Module,
    images: Float[Tensor, "images *rest"],
    changed: Float[Tensor, "images *rest"],
    labels: Int[Tensor, " labels"],
    prior: Float[Tensor, " classes"] | None = None,
    batch: int = 1024,
) -> InformationGap:
    """The variational information that a change of the images costs, with the two sides that bound it.

    The model runs in evaluation mode, without gradients. I is at most the mutual information of labels and images if P
    is their true law, because Q is not the true conditional law; of another P the gap is the same.

    Guarantee: ESTIMATE of expectations; the inequalities hold for the means over these images too.
    Cost: two forward passes. Reference: Luo 2025, corollary 5.3.6, for the first; the last one there does not hold.

    Args:
        model: Maps a batch of images to logits.
        images: x, two at least.
        changed: x', such as `low_pass(x, 0.5)`, or one band less.
        labels: y.
        prior: P, the shares of the classes; those of `labels` if None.
        batch: The most images in one forward pass.
    """
    if images.shape != changed.shape or labels.shape != images.shape[:1]:
        raise ShapeError(
            "Images, changed images and labels belong together, got shapes "
            f"{tuple(images.shape)}, {tuple(changed.shape)} and {tuple(labels.shape)}."
        )
    if batch < 1 or len(images) < 2:
        raise ArgumentError(f"A standard error needs two images, and batch is at least 1, got {len(images)}, {batch}.")
    truth = labels.to(images.device).long()
    with torch.no_grad(), evaluating(model):
        before, after = (
            torch.cat([log_likelihoods(model, *one) for one in zip(x.split(batch), truth.split(batch), strict=True)])
            for x in (images, changed)
        )
    shares = truth.bincount().double() / len(truth) if prior is None else prior
    known = log_prior(truth, shares).to(before)
    distances = norm_up((images.double() - changed.double()).flatten(1), 1)
    # One rounding of each difference.
    distances = round_up(distances, 2)
    if not bool(torch.isfinite(distances).all()):
        raise NonFiniteError("Some images are NaN or infinite; clean the data first.")
    moved = (before - after).abs()
    return InformationGap(
        float((before - known).mean()),
        float((after - known).mean()),
        float(moved.mean()),
        float(moved.std()) / math.sqrt(len(moved)),
        distances,
    )
