"""Means and variances of private records, paid for like a step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.privacy.accounting._base import Releases, check_count, check_sigma
from lipkit.privacy.entropy import Entropy, SystemEntropy
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.record_limits.captured_sensitivity import FLOAT_SLACK

_SYSTEM = SystemEntropy()


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Noised moments of records on their ball, and what they cost.

    Args:
        mean: Of each entry, or of each channel.
        variance: The same, never below 0.
        releases: What a plan pays for them: `Plan(..., others=[moments.releases])`.
    """

    mean: Float64[Tensor, "..."]
    variance: Float64[Tensor, "..."]
    releases: Releases


def release_moments(
    x: Float[Tensor, "rows ..."],
    inputs: Inputs,
    records: int,
    sigma: float,
    *,
    positions: Sequence[int] = (),
    entropy: Entropy = _SYSTEM,
) -> Moments:
    """Means and variances of z = inputs(x) with Gaussian noise, as one release of multiplier `sigma` at rate 1.

        mean = (sum_i a_i + sqrt(2) sigma R / sqrt(P) N) / records,        a_i = mean of z_i over P positions,
        second = (sum_i q_i + sqrt(2) sigma (R^2 / P) N) / records,        q_i = mean of z_i^2 over them,
        variance = max(0, second - mean^2).

    |a_i| <= R / sqrt(P), and |q_i|_2 <= |q_i|_1 <= R^2 / P, with R the radius of the ball. Whoever standardises by the
    private records without paying makes a release that nobody counts.

    Guarantee: one Gaussian release of `sigma`, under adding or removing one record. It is not in any ledger: give
    `releases` to the plan that is to pay, once for each call. Cost: one pass.

    Args:
        x: The records.
        inputs: The ball that they are moved onto; means are of what it gives, after its center was subtracted.
        records: The public number of records, which sums are divided by.
        sigma: The noise multiplier.
        positions: Axes of one record that are averaged over: (1, 2) for channels of images.
        entropy: Where noise comes from.
    """
    check_count(records, "records")
    sigma = check_sigma(sigma)
    rank = len(inputs.shape)
    if any(not 0 <= axis < rank for axis in positions) or len(set(positions)) != len(positions):
        raise ShapeError(f"Positions are different axes 0..{rank - 1} of one record, got {tuple(positions)}.")
    moved = inputs(x).double()
    axes = tuple(axis + 1 for axis in positions)
    places = math.prod(inputs.shape[axis] for axis in positions)
    first, second = ((values.mean(axes) if axes else values).sum(0) for values in (moved, moved.square()))
    # Two tensors in one release: each has sqrt(2) times the noise that it would have alone.
    unit = math.sqrt(2) * sigma * (1 + FLOAT_SLACK)
    first += entropy.normal(first, unit * inputs.radius / math.sqrt(places))
    second += entropy.normal(second, unit * inputs.radius**2 / places)
    mean = first / records
    return Moments(mean, (second / records - mean.square()).clamp(min=0), Releases(1.0, sigma, 1))
