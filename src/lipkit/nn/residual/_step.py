"""x - W' (c phi(W x + b)): what all residual layers compute, with plain tensors."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Padding, Shape
from lipkit.linops.conv import CONV, CONV_TRANSPOSE
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.slopes import rises_by_at_most_one, slopes_of
from lipkit.norms import Auto
from lipkit.rounding.slacks import ROUNDINGS_32


def step(
    x: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    bias: Float[Tensor, " hidden"] | None,
    coefficient: Float[Tensor, " hidden"],
    activation: nn.Module,
    geometry: Geometry,
) -> Float[Tensor, "..."]:
    """x - W' (c phi(W x + b)), dense (on the last axis) or by convolutions that keep the size."""
    inner = activation(applied(x, weight, bias, geometry))
    return x - adjoint(inner * per_row(coefficient, geometry), weight, geometry)


def applied(
    x: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    bias: Float[Tensor, " hidden"] | None,
    geometry: Geometry,
) -> Float[Tensor, "..."]:
    """W x + b: on the last axis, or by a convolution that keeps the size."""
    if not geometry.taps:
        return functional.linear(x, weight, bias)
    rank = len(geometry.taps)
    sides = tuple(left for left, _ in geometry.padding)
    wrapped = geometry.mode is Padding.CIRCULAR
    inside = (0,) * rank if wrapped else sides
    padded = _pad_circularly(x, sides, wrapped)
    return CONV[rank](padded, weight, bias, 1, inside, geometry.dilation, geometry.groups)


def adjoint(z: Float[Tensor, "..."], weight: Float[Tensor, "..."], geometry: Geometry) -> Float[Tensor, "..."]:
    """W' z, of the same map."""
    if not geometry.taps:
        return functional.linear(z, weight.mT)
    sides = tuple(left for left, _ in geometry.padding)
    wrapped = geometry.mode is Padding.CIRCULAR
    # On a circle the adjoint is that of the padded image, and the padding of both ends is cut off again.
    outside = tuple(2 * p for p in sides) if wrapped else sides
    image = _pad_circularly(z, sides, wrapped)
    transposed = CONV_TRANSPOSE[len(geometry.taps)]
    return transposed(image, weight, None, 1, outside, 0, geometry.groups, geometry.dilation)


def per_row(numbers: Float[Tensor, " hidden"], geometry: Geometry) -> Float[Tensor, "..."]:
    """One number for each row of W, shaped to multiply W x."""
    return numbers.reshape(-1, *(1,) * len(geometry.taps))


def _pad_circularly(x: Tensor, sides: tuple[int, ...], wrapped: bool) -> Tensor:
    if not wrapped or not any(sides):
        return x
    return functional.pad(x, [p for side in reversed(sides) for p in (side, side)], mode="circular")


def check_activation(activation: nn.Module, layer: str) -> nn.Module:
    """The activation, if it is a module of torch.nn that is known to be non-decreasing with slopes of at most one.

    Then it is the derivative of a convex function, and I - W' C D W with D = diag(slopes) lies between -I and I. With
    slopes in [-1, 1] it lies between -I and 3 I: |.| and sorting activations were measured to reach constants near 3.
    """
    slopes = slopes_of(activation)
    if slopes is None or slopes[0] < 0 or slopes[1] > 1:
        raise UnsupportedError(
            f"{layer} needs a non-decreasing activation with slopes in [0, 1], and {activation} is not known to be one "
            "(an absolute value or a sort in its place has led to constants of about 3); use nn.ReLU(), or one of "
            f"{', '.join(rises_by_at_most_one())} with slopes in that range."
        )
    return activation


@final
class PlainStep(nn.Module):
    """A residual layer with given numbers, as `to_plain` writes it: nothing keeps them consistent from here on."""

    def __init__(
        self,
        weight: Float[Tensor, "..."],
        bias: Float[Tensor, " hidden"] | None,
        coefficient: Float[Tensor, " hidden"],
        activation: nn.Module,
        geometry: Geometry,
        factor: float = 1.0,
        *,
        trained: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone(), trained)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), trained)
        self.coefficient = nn.Parameter(coefficient.detach().clone(), trained)
        self.activation = activation
        self.geometry = geometry
        self.factor = factor

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """factor (x - W' (c phi(W x + b)))."""
        made = step(x, self.weight, self.bias, self.coefficient, self.activation, self.geometry)
        return made if self.factor == 1.0 else self.factor * made

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """factor max(1, b^2 - 1) with a certified b >= ||C^(1/2) W||, of the numbers as they are.

        The Jacobian is I - S' D S with S = C^(1/2) W and 0 <= D <= 1, so its eigenvalues are in [1 - ||S||^2, 1].
        """
        check_activation(self.activation, type(self).__name__)
        coefficient = self.coefficient.detach().to(torch.float64)
        if bool((coefficient < 0).any()):
            raise ArgumentError(f"A step size is negative, {float(coefficient.min()):g}; all must be at least 0.")
        # A root and a product: two roundings, covered by the slack below.
        rows = self.weight.detach().to(torch.float64) * coefficient.sqrt().reshape(-1, *(1,) * (self.weight.ndim - 1))
        norm = Auto(failure=0)(self.geometry.operator(rows, in_shape))
        constant = (norm.value.square() * (1 + ROUNDINGS_32) - 1).clamp(min=1.0)
        return Bound.from_value(abs(self.factor) * constant, Kind.UPPER, f"step sizes against {norm.method}")
