"""Orthogonal matrices by the iteration of Björck and Bowie."""

import math
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._isometry import factor, finished
from lipkit.nn.methods._products import gram_of, step
from lipkit.nn.methods._scaling import contracted, levelled, size_of
from lipkit.nn.methods._small_side import by_gram
from lipkit.nn.precision import exact_products

# How far from 1 the range is before the last step; e becomes 3/2 e^2 by it, 2e-12.
_NEAR = 1e-6
# More steps reach smaller singular values than the Gram matrix has digits for.
_ON_GRAM = 8
# Narrower than this a GPU spends more time on starting the many small products than on fewer long ones.
_NARROW = 512


@final
@dataclass(frozen=True)
class Bjorck(MatrixMethod):
    """The nearest orthogonal matrix: W <- 3/2 c W - 1/2 c^3 W W' W, which takes a singular value s to that of c s.

    It starts from W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf) on the smaller side, so all singular values
    are in [0, 1] and stay there: 3/2 s - 1/2 s^3 is in [0, 1] for s in [0, 3^(1/2)], and every c is at most 3^(1/2).
    What has not converged yet is below one, never above. Björck's c is 1; the c of the early steps are larger, chosen
    so that both ends of the range that is left, [l, 1], come to the same place:
        c = (3 / (1 + l + l^2))^(1/2),   l <- 3/2 c - 1/2 c^3.
    Singular values above b / 58 arrive at 1 up to 1e-6, those above b / 47 up to 2e-12, and rounding; each step more
    reaches 2.6 times further. Initial weights are orthogonal already.

    Guarantee: norm at most 1 as stored: the last step is done in float64, and 3/2 s - 1/2 s^3 <= 1 for every s in
    [0, 2], so earlier rounding cannot carry it above. Cost: 2 `steps` products with the smaller side, the last two in
    float64, and 3 `steps` backward. A matrix at least twice as long as wide is multiplied only twice, and three times
    backward: the steps are those of its Gram matrix (up to 8 steps, without tf32, on a GPU from 512 columns).
    Gradient: through all steps.
    Reference: Björck and Bowie 1971; Anil, Lucas and Grosse 2019; the factors c: Chen and Chow 2014.
    """

    steps: int = 8

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError(f"Bjorck.steps must be at least 1, got {self.steps}.")

    def __str__(self) -> str:
        return f"Björck, {self.steps} steps"

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if raw.shape[-2] < raw.shape[-1]:
            return self._tall(raw.mT).mT
        return self._tall(raw)

    def _tall(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if self.steps == 1:
            return finished(contracted(tall), tall.dtype)
        first, *others = scales = factors(self.steps - 1)
        if self._on_gram(tall):
            return by_gram(tall, scales)
        scaled = levelled(tall)
        gram = gram_of(scaled, scaled.dtype)
        size = size_of(gram)
        found = scaled @ (factor(gram / size.square(), first) / size)
        for scale in others:
            found = step(found, scale)
        return finished(found, tall.dtype)

    def _on_gram(self, tall: Tensor) -> bool:
        rows, cols = tall.shape[-2:]
        worth = rows >= 2 * cols and (tall.device.type == "cpu" or cols >= _NARROW)
        return worth and self.steps <= _ON_GRAM and exact_products(tall)


def factors(steps: int) -> tuple[float, ...]:
    """The factors c of `steps` steps after which both ends of the range are at 1 - `_NEAR`.

    Found backwards: with s = 2 sin t a step takes s to sin 3t, and c and c l are the two s that come to the new l.
    """
    found: list[float] = []
    least = 1 - _NEAR
    for _ in range(steps):
        third = math.asin(least) / 3
        found.append(2 * math.sin(math.pi / 3 - third))
        least = 2 * math.sin(third) / found[-1]
    return tuple(reversed(found))
