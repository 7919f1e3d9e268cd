"""Signed distances of classifiers with several classes, and how far classes are apart."""

from typing import final

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf._base import Field, Readings, check_points
from lipkit.sdf.decision.nearest_boundary import NearestBoundary
from lipkit.sdf.decision.nearest_margin import NearestMargin
from lipkit.sdf.exact.points import Points, check_cloud


@final
class ClassScores:
    """The 1-nearest-neighbour classifier of several classes: f_k(x) = max(g_k(x), 0), g_k that of class k and the rest.

    At most one score is positive. With `exact` it is the distance to the decision boundary, otherwise a lower bound of
    it, half the difference of two distances. Either way x -> (f_1, ..., f_m) is 1-Lipschitz in l2, and the radius is
    the margin itself: the usual certificate, margin / 2^(1/2), is not tight here.

    Cost: m fields of two sets. Reference: Béthune 2024, Definition 9.

    Args:
        points: The training points.
        labels: Their classes, any integers; the scores are in the order of `classes`.
        exact: Distances to the boundary (`NearestBoundary`, for small sets) in place of `NearestMargin`.
    """

    def __init__(self, points: Float[Tensor, "n d"], labels: Int[Tensor, " n"], exact: bool = False) -> None:
        cloud, self.classes = _check_classes(points, labels)
        make = NearestBoundary if exact else NearestMargin
        self.fields: tuple[Field, ...] = tuple(make(cloud[labels == k], cloud[labels != k]) for k in self.classes)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, "n m"]:
        """The scores, differentiable in the points."""
        return torch.stack([field(x) for field in self.fields], 1).clamp(min=0)

    def predict(self, x: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
        """The class of each point; on the boundary one of those that tie."""
        with torch.no_grad():
            signed = torch.stack([field(x) for field in self.fields], 1)
        return self.classes.to(signed.device)[signed.argmax(1)]

    def radius(self, x: Float[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """How far each point can move without leaving its class: lower bounds, rounding included."""
        found = [field.measure(x) for field in self.fields]
        return torch.stack([_below(one) for one in found], 1).amax(1)


def epsilon_separation(points: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> float:
    """The smallest distance between points of two classes, rounded down.

    Some classifier of constant 1 has no error on the points with every margin at least half of it, and no classifier
    has certified radii beyond half of it at all of them.

    Cost: that of the nearest neighbours of all points. Reference: Yang et al. 2020.
    """
    cloud, classes = _check_classes(points, labels)
    least = [_below(_distance(cloud[labels == k], cloud[labels > k])).min() for k in classes[:-1]]
    return float(torch.stack(least).min())


def _distance(points: Tensor, queries: Tensor) -> Readings:
    found = Points(points).measure(queries)
    return Readings(-found.value, found.error)


def _below(found: Readings) -> Float64[Tensor, " n"]:
    # One more rounding, of the difference itself, is far below the bounds of the errors, which are never tight.
    return (found.value - 2 * found.error).clamp(min=0)


def _check_classes(points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    cloud = check_cloud(points, "points")
    if labels.shape != (len(cloud),):
        raise ShapeError(f"{len(cloud)} points have as many labels, got shape {tuple(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex():
        raise ArgumentError(f"Labels are whole numbers, got {labels.dtype}; convert them, and leave out what has none.")
    classes = labels.unique()
    if len(classes) < 2:
        raise ArgumentError(f"A boundary needs two classes or more, got only {classes.tolist()}.")
    return check_points(cloud, cloud.shape[1]), classes
