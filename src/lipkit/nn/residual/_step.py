"""x - W' (c phi(W x + b)): what all residual layers compute, with plain tensors."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lipkit.linops import Padding
from lipkit.linops.conv import CONV, CONV_TRANSPOSE
from lipkit.nn.geometry import Geometry


def step(
    x: Float[Tensor, "..."],
    weight: Float[Tensor, "..."],
    bias: Float[Tensor, " hidden"] | None,
    coefficient: Float[Tensor, " hidden"],
    activation: nn.Module,
    geometry: Geometry,
) -> Float[Tensor, "..."]:
    """x - W' (c phi(W x + b)), dense (on the last axis) or by convolutions that keep the size."""
    if not geometry.taps:
        inner = activation(functional.linear(x, weight, bias))
        return x - functional.linear(inner * coefficient, weight.mT)
    rank = len(geometry.taps)
    sides = tuple(left for left, _ in geometry.padding)
    wrapped = geometry.mode is Padding.CIRCULAR
    inside = (0,) * rank if wrapped else sides
    inner = CONV[rank](_turned(x, sides, wrapped), weight, bias, 1, inside, geometry.dilation, geometry.groups)
    inner = activation(inner) * coefficient.reshape(-1, *(1,) * rank)
    # On a circle the adjoint is that of the padded image, and the padding of both ends is cut off again.
    outside = tuple(2 * p for p in sides) if wrapped else sides
    image = _turned(inner, sides, wrapped)
    return x - CONV_TRANSPOSE[rank](image, weight, None, 1, outside, 0, geometry.groups, geometry.dilation)


def _turned(x: Tensor, sides: tuple[int, ...], wrapped: bool) -> Tensor:
    if not wrapped or not any(sides):
        return x
    return functional.pad(x, [p for side in reversed(sides) for p in (side, side)], mode="circular")


@final
class PlainStep(nn.Module):
    """A residual layer with given numbers, as `condensed` writes it: nothing keeps them consistent from here on."""

    def __init__(
        self,
        weight: Float[Tensor, "..."],
        bias: Float[Tensor, " hidden"] | None,
        coefficient: Float[Tensor, " hidden"],
        activation: nn.Module,
        geometry: Geometry,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.coefficient = nn.Parameter(coefficient.detach().clone())
        self.activation = activation
        self.geometry = geometry
        self.factor = factor

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """factor (x - W' (c phi(W x + b)))."""
        made = step(x, self.weight, self.bias, self.coefficient, self.activation, self.geometry)
        return made if self.factor == 1.0 else self.factor * made


def running_dtype(weight: Tensor) -> torch.dtype:
    """The type the products will be done in: autocast's where it is on, else the weight's own."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return weight.dtype
