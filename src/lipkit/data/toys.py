"""Two moons and two circles: sets in the plane one can draw, made from a seed."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError


def moons(count: int, seed: int, noise: float = 0.05) -> Examples:
    """Two interleaved half circles of radius 1 in the plane, each point moved by normal noise.

    Class 0 (`upper`) lies on (cos t, sin t), class 1 (`lower`) on (1 - cos t, 1/2 - sin t), with t evenly spaced over
    [0, pi]; `noise` is the deviation along each axis. Half of the points each, one more below where the count is odd;
    the order is drawn too. The same for the same seed, on every machine. Without noise the classes are 1/2 apart.

    Args:
        count: Number of points, at least 2.
        seed: Draws the noise and the order.
        noise: Standard deviation of the noise along each axis.
    """
    _demand(count, noise)
    upper, lower = _space_evenly(count // 2, math.pi, ends=True), _space_evenly(count - count // 2, math.pi, ends=True)
    return _scatter(
        torch.stack([upper.cos(), upper.sin()], 1),
        torch.stack([1 - lower.cos(), 0.5 - lower.sin()], 1),
        *("two moons", ("upper", "lower"), noise, seed),
    )


def circles(count: int, seed: int, noise: float = 0.05, ratio: float = 0.5) -> Examples:
    """Two circles around the origin, class 0 (`outer`) of radius 1, class 1 (`inner`) of radius `ratio` in (0, 1).

    Points are evenly spaced on each, half of them each (one more inside where the count is odd), then moved by normal
    noise of deviation `noise` along each axis; the order is drawn too. Without noise the classes are 1 - `ratio` apart.

    Args:
        count: Number of points, at least 2.
        seed: Draws the noise and the order.
        noise: Standard deviation of the noise along each axis.
        ratio: Radius of the inner circle, in (0, 1).
    """
    _demand(count, noise)
    if not 0 < ratio < 1:
        raise ArgumentError(f"The inner circle has a radius between 0 and 1, got ratio={ratio}.")
    outer, inner = (
        _space_evenly(count // 2, 2 * math.pi, ends=False),
        _space_evenly(count - count // 2, 2 * math.pi, ends=False),
    )
    return _scatter(
        torch.stack([outer.cos(), outer.sin()], 1),
        ratio * torch.stack([inner.cos(), inner.sin()], 1),
        *("two circles", ("outer", "inner"), noise, seed),
    )


def _demand(count: int, noise: float) -> None:
    if count < 2:
        raise ArgumentError(f"Two classes need at least 2 points, got count={count}.")
    if not 0 <= noise < math.inf:
        raise ArgumentError(f"The noise is a deviation, at least 0 and finite, got {noise}.")


def _space_evenly(count: int, until: float, ends: bool) -> Float64[Tensor, " count"]:
    """`count` numbers from 0 on, the last one `until` (`ends`) or one step before it."""
    steps = max(count - 1, 1) if ends else count
    return until / steps * torch.arange(count, dtype=torch.float64)


def _scatter(
    first: Float64[Tensor, "a 2"],
    second: Float64[Tensor, "b 2"],
    name: str,
    classes: tuple[str, str],
    noise: float,
    seed: int,
) -> Examples:
    random = generator(seed)
    points = torch.cat([first, second])
    points = points + noise * torch.randn(points.shape, generator=random, dtype=torch.float64)
    labels = torch.cat([torch.zeros(len(first), dtype=torch.long), torch.ones(len(second), dtype=torch.long)])
    return Examples(points.float(), labels, classes, name).at(torch.randperm(len(points), generator=random))
