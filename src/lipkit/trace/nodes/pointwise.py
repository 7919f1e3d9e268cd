"""A scalar function applied to every entry."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.linops import Diagonal, Shape
from lipkit.linops._base import Live
from lipkit.regions import Reach, reach_of, tighten
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_128, ULP
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes.activations.curve import Interval


class Activation(Live, ABC):
    """A continuous scalar function f, and what is known of it on every interval.

    Ends may be infinite. All answers are rounded outward, so that they hold for the function of real arithmetic.
    """

    @abstractmethod
    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """f, entry by entry, in the dtype of z."""

    @abstractmethod
    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """(alpha, beta): every (f(s) - f(t)) / (s - t) with s, t in [low, high] lies between; +-inf if unbounded."""

    @abstractmethod
    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """An interval that contains f([low, high])."""

    @abstractmethod
    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        """An interval that contains every difference quotient of f' on [low, high]: its range of curvature.

        A kink inside makes an end infinite: +inf where the slope jumps up, -inf where it jumps down. So f is convex
        there if the lower end is >= 0, concave if the upper one is <= 0, and f' is Lipschitz if both are finite.
        """

    @property
    def kinks(self) -> tuple[float, ...]:
        """The points at which f has no derivative; by default none."""
        return ()

    def smoothed(self, mu: float) -> "Activation":
        """A function without kinks that tends to f as mu > 0 tends to 0; by default f itself, if it has none."""
        if self.kinks:
            raise UnsupportedError(
                f"{self} has kinks at {', '.join(f'{k:g}' for k in self.kinks)} and no smooth version; "
                "replace it by a smooth activation."
            )
        return self


@final
@dataclass(frozen=True, eq=False)
class Identity(Activation):
    """f(z) = z: marks a value that is kept as it is, where a network is cut."""

    def __call__(self, z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return z

    def slopes(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        one = torch.ones_like(low)
        return one, one

    def values(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        return low, high

    def bends(self, low: Float64[Tensor, "..."], high: Float64[Tensor, "..."]) -> Interval:
        zero = torch.zeros_like(low)
        return zero, zero

    def __str__(self) -> str:
        return "identity"


@final
@dataclass(frozen=True, eq=False)
class Pointwise(Node):
    """y_i = f(z_i), with the slopes of f in [alpha_i, beta_i]: Lip = max_i max(|alpha_i|, |beta_i|) in every l_p.

    `domain` is the box that z is known to lie in; None is the whole space.
    """

    activation: Activation
    size: Shape
    domain: Interval | None = None

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.size

    @property
    def is_identity(self) -> bool:
        return isinstance(self.activation, Identity)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self.activation(z)

    @property
    def roundings(self) -> float:
        return 0.0 if self.is_identity else 64.0

    def slopes(self) -> Interval:
        """(alpha, beta), float64: scalars on the whole space, one pair for each entry in a box."""
        if self.domain is not None:
            return self.activation.slopes(*self.domain)
        ends = torch.full((), torch.inf, dtype=torch.float64)
        return self.activation.slopes(-ends, ends)

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        alpha, beta = self.slopes()
        return log_up(torch.maximum(alpha.abs(), beta.abs()).max())

    def split(self, p: float) -> Split:
        alpha, beta = self.slopes()
        # An infinite slope leaves no middle; the rest is then infinite too, and nothing becomes NaN.
        finite = torch.isfinite(alpha) & torch.isfinite(beta)
        middle = torch.where(finite, (alpha + beta) / 2, 0.0)
        # Rounding of the middle is paid by the rest, so that [alpha, beta] stays covered.
        spread = torch.maximum(beta - middle, middle - alpha) * (1 + ROUNDINGS_8) + ULP * middle.abs()
        exact = alpha == beta
        spread = torch.where(exact, 0.0, spread)
        return Split(Diagonal(middle, self.size), Diagonal(spread, self.size))

    def within(self, reach: Reach) -> "Pointwise":
        reach = tighten(reach)
        return replace(self, domain=(reach.low, reach.high))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        low, high = self.activation.values(reach.low, reach.high)
        alpha, beta = self.activation.slopes(reach.low, reach.high)
        steepest = torch.maximum(alpha.abs(), beta.abs()).max()
        center = self.activation(reach.center)
        # The center is rounded by a few units in the last place of an elementary function's value.
        error = ROUNDINGS_128 * torch.linalg.vector_norm(center.abs() + reach.center.abs())
        return reach_of(low, high, center, steepest * reach.radius + error)

    def __str__(self) -> str:
        return str(self.activation)
