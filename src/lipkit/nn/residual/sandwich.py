"""Sandwich layers: an activation between two maps that together have norm one."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.geometry import Geometry, geometry_of
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.layers._constrained_layer import ConstrainedLayer, refuse_methods
from lipkit.nn.layers.conv import Conv1d, Conv2d, Conv3d, PaddingMode
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.methods.convolutions.aoc import AOC
from lipkit.nn.residual._base import convolution, dense
from lipkit.nn.residual._step import adjoint, applied, check_activation, per_row
from lipkit.norms import Auto
from lipkit.rounding.slacks import ROUNDINGS_32

# The largest |log psi|: exp(8) and its inverse are normal numbers of every type, float16 included.
_MOST = 8.0
_CONVOLUTIONS = {1: Conv1d, 2: Conv2d, 3: Conv3d}


class _Sandwich(Stated):
    """y = A' (u phi(d B x + b)) with ||[A B]|| <= 1, d = 2^(1/2) / psi, and u = 2 / d rounded down."""

    activation: nn.Module

    def __init__(
        self, joint: nn.Module, geometry: Geometry, sizes: tuple[int, int], bias: bool, activation: nn.Module | None,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_size, self.out_size = sizes
        self.geometry = geometry
        self.activation = check_activation(nn.ReLU() if activation is None else activation, type(self).__name__)
        self.joint = joint
        # Refuses methods that say nothing in l2.
        _ = self.gain
        self.log_psi = nn.Parameter(torch.empty(geometry.rows, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(geometry.rows, device=device, dtype=dtype)) if bias else None
        self._reset_scales()

    def reset_parameters(self) -> None:
        """Draw [A B] anew from its method's own start, as the constructor does; log_psi and the bias are zero."""
        if not isinstance(self.joint, ConstrainedLayer):
            raise UnsupportedError("A condensed sandwich layer has no method to draw weights from; build a new layer.")
        self.joint.reset_parameters()
        self._reset_scales()

    def _reset_scales(self) -> None:
        with torch.no_grad():
            self.log_psi.zero_()
            if self.bias is not None:
                self.bias.zero_()

    @property
    def gain(self) -> float:
        """||[A B]||^2, which is 1 in float32 and float64; in fewer digits, the most that rounding makes of it.

        The Jacobian 2 A' D B is a corner of 2 M' D M - ||M||^2 I with M = [A B], and 0 <= M' D M <= ||M||^2 I.
        """
        check_activation(self.activation, type(self).__name__)
        norm = gain_of(self.joint)
        return 1.0 if norm == 1 else norm**2 * (1 + ROUNDINGS_32)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """||[A B]||^2 on one input of `in_shape`: by its method, or of a condensed layer measured as it is."""
        check_activation(self.activation, type(self).__name__)
        axis = 0 if self.geometry.taps else -1
        if not in_shape or in_shape[axis] != self.in_size:
            where = f"({self.in_size}, *size)" if self.geometry.taps else f"(..., {self.in_size})"
            raise ShapeError(f"The layer takes one input of shape {where}, without batch axis, got {tuple(in_shape)}.")
        channels = self.in_size + self.out_size
        shape = (channels, *in_shape[1:]) if self.geometry.taps else (channels,)
        if isinstance(self.joint, ConstrainedLayer):
            norm = self.joint.declared_lipschitz(shape)
        else:
            norm = Auto(failure=0)(geometry_of(self.joint).operator(self._weight(), shape))
        square = norm.value.square() * (1 + ROUNDINGS_32)
        return Bound.from_value(
            1.0 if float(norm.value.detach()) == 1 else square, Kind.UPPER, f"sandwich of {norm.method}"
        )

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A' (u phi(d B x + b))."""
        weight = self._weight()
        outer, inner = weight.split((self.out_size, self.in_size), 1)
        down, up = (per_row(numbers, self.geometry) for numbers in _scales(self.log_psi, weight.dtype))
        hidden = applied(x, inner, None, self.geometry) * down
        if self.bias is not None:
            hidden = hidden + per_row(self.bias, self.geometry)
        return adjoint(self.activation(hidden) * up, outer, self.geometry)

    def extra_repr(self) -> str:
        """Sizes of input, output and hidden units."""
        return f"{self.in_size}, {self.out_size}, hidden={self.geometry.rows}"

    def _weight(self) -> Float[Tensor, "..."]:
        weight = self.joint.weight
        assert isinstance(weight, Tensor)
        return weight


def _scales(log_psi: Float[Tensor, " hidden"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """2^(1/2) / psi and 2^(1/2) psi in `dtype`, with a product of at most 2 as they are stored."""
    wide = _MOST * torch.tanh(log_psi.to(torch.float64) / _MOST)
    down = (math.sqrt(2) * torch.exp(-wide)).to(dtype)
    # A quotient, a product and the rounding to `dtype` are less than two units in its last place.
    up = (2 / down.to(torch.float64) * (1 - 2 * torch.finfo(dtype).eps)).to(dtype)
    return down, up


@final
class Sandwich(_Sandwich):
    """2^(1/2) A' Psi phi(2^(1/2) Psi^-1 B x + b) with ||[A B]|| <= 1 and learnt Psi = diag(exp(log_psi)) > 0.

    [A B] is `joint.weight`, which `method` makes of free numbers: with `Cayley()` and as many hidden units as outputs
    it is the layer of the paper, A A' + B B' = I. phi is non-decreasing with slopes of at most one (checked;
    ReLU if none is given). log_psi is kept within -8 and 8 by 8 tanh(log_psi / 8).

    Guarantee: constant 1, for the numbers as they are stored: the Jacobian is 2 A' D B with 0 <= D <= I, the corner of
    2 [A B]' D [A B] - I. Cost: two products, and that of the method. Reference: Wang and Manchester 2023; that a
    contraction [A B] is enough, and so every method and every number of hidden units, is ours.

    Args:
        in_features: Entries of an input, on its last axis.
        out_features: Entries of an output.
        hidden: Rows of A and B; `out_features` if None.
        activation: phi; nn.ReLU() if None.
        method: Computes [A B] from free numbers; by default `Cayley()`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: int | None = None,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        method: WeightMethod = Cayley(),  # noqa: B008 - immutable
    ) -> None:
        refuse_methods(self, bias=bias)
        sizes = _checked(in_features, out_features)
        geometry = dense(sum(sizes), out_features if hidden is None else hidden)
        joint = Linear(sum(sizes), geometry.rows, False, device, dtype, method=method)
        super().__init__(joint, geometry, sizes, bias, activation, device, dtype)


@final
class SandwichConv(_Sandwich):
    """`Sandwich` with convolutions in 1 to 3 dimensions that keep the size (odd kernels; zero or circular padding).

    [A B] is one convolution with in_channels + out_channels inputs, of norm at most 1 on images of every size by its
    method; A' is the transposed convolution. The paper makes it orthogonal in Fourier space for one size of image.
    Cost: two convolutions, and that of the method.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Taps on each axis, odd; one number for all `rank` axes.
        hidden: Channels of B x; `out_channels` if None.
        rank: Number of spatial axes where `kernel_size` is one number.
        activation: phi; nn.ReLU() if None.
        method: Computes the kernel of [A B] from free numbers; by default `AOC()`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Shape,
        hidden: int | None = None,
        dilation: int | Shape = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int = 2,
        activation: nn.Module | None = None,
        method: WeightMethod = AOC(),  # noqa: B008 - immutable
    ) -> None:
        refuse_methods(self, bias=bias)
        sizes = _checked(in_channels, out_channels)
        rows = out_channels if hidden is None else hidden
        geometry = convolution(sum(sizes), rows, kernel_size, dilation, 1, padding_mode, rank)
        if isinstance(method, WeightMethod) and method.kernel_geometry(geometry) != geometry:
            raise UnsupportedError(
                f"{method} makes a kernel that is not applied as a plain convolution, so it has no parts A and B for "
                "SandwichConv; use AOC(), BCOP(), or a contraction such as AOL()."
            )
        sides = tuple(left for left, _ in geometry.padding)
        joint = _CONVOLUTIONS[len(sides)](
            sum(sizes), rows, geometry.taps, 1, sides, geometry.dilation, 1, False, padding_mode, device, dtype,
            method=method,
        )  # fmt: skip
        super().__init__(joint, geometry, sizes, bias, activation, device, dtype)


def _checked(inputs: int, outputs: int) -> tuple[int, int]:
    if min(inputs, outputs) < 1:
        raise ArgumentError(f"A sandwich layer needs at least one input and one output, got {inputs} and {outputs}.")
    return inputs, outputs
