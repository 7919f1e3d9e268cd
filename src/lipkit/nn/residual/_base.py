"""The base of residual layers: their parameters, their geometry, and how they are applied."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.linops import Padding, Shape
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.core.precision import dtype_in_use, uncast
from lipkit.nn.layers.conv import PaddingMode
from lipkit.nn.methods._arithmetic.rescaling_step import largest
from lipkit.nn.residual._step import PlainStep, check_activation, step


class Coefficient(Computed):
    """The step sizes c of a residual layer, from the weights as they are multiplied with: W' diag(c) W <= 2 I.

    Computed in float32 or float64 whatever autocast says, and rounded down to the type of the weights.
    """

    def __init__(self, geometry: Geometry, steps: int) -> None:
        super().__init__()
        self.geometry = geometry
        self.steps = steps

    def compute(self, *parameters: Tensor) -> Tensor:
        weight = parameters[0]
        with uncast(weight.device.type):
            wide = weight if weight.dtype in (torch.float32, torch.float64) else weight.to(torch.float32)
            blocks = self.geometry.blocks(wide)
            # c is homogeneous of degree -2 in the blocks, so this scale needs no gradient; its rounding is counted.
            scale = largest(blocks.detach(), torch.finfo(blocks.dtype).tiny)
            inverse = self.inverse_square(blocks / scale, *parameters[1:])
            return _down(inverse, scale.view(-1, 1), weight.dtype).flatten()

    @abstractmethod
    def inverse_square(
        self, blocks: Float[Tensor, "groups rows cols *taps"], *others: Tensor
    ) -> Float64[Tensor, "groups rows"]:
        """1/T with W W' <= T, rounded down, for entries of at most one; 0 where there is nothing to divide by."""


def _down(
    inverse: Float64[Tensor, "groups rows"], scale: Float[Tensor, "groups 1"], dtype: torch.dtype
) -> Float[Tensor, "groups rows"]:
    """2 inverse / scale^2 in `dtype`, never above it; what is too large is cut."""
    info = torch.finfo(dtype)
    # Gradients have c as a factor and must stay finite for weights however small.
    most = min(info.max / 4, 2.0**62)
    # The square of the scale could leave the range of float64. Normal numbers are rounded by less than the first
    # difference, subnormal ones by less than the second, the smallest of them.
    c = inverse * (2 - 4 * info.eps) / scale / scale - info.tiny * info.eps
    return functional.hardtanh(c, 0.0, most).to(dtype)


class ResidualLayer(Stated):
    """x - W' (c phi(W x + b)) with a free weight W, and step sizes c that make it 1-Lipschitz."""

    activation: nn.Module
    coefficient_type: ClassVar[type[Coefficient]]
    # Gram steps where the user names none, and the most there may be.
    default_steps: ClassVar[int]
    most_steps: ClassVar[int]

    def __init__(
        self, geometry: Geometry, bias: bool, activation: nn.Module | None, steps: int | None,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.steps = self.default_steps if steps is None else steps
        if not 1 <= self.steps <= self.most_steps:
            raise ArgumentError(f"steps must lie in 1..{self.most_steps}, got {steps}.")
        self.geometry = geometry
        self.activation = check_activation(nn.ReLU() if activation is None else activation, type(self).__name__)
        hidden = geometry.groups * geometry.rows
        shape = (hidden, geometry.cols, *geometry.taps)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden, device=device, dtype=dtype)) if bias else None
        self.add_parameters(device, dtype)
        self.coefficient = self.coefficient_type(geometry, self.steps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, as the constructor does: normal with variance 1/fan, uniform up to 1/sqrt(fan).

        The bias is drawn, unlike that of other layers: zero made no difference on MNIST (docs/benchmarks.md).
        """
        fan = self.geometry.cols * math.prod(self.geometry.taps)
        with torch.no_grad():
            self.weight.normal_(0, fan**-0.5)
            if self.bias is not None:
                self.bias.uniform_(-(fan**-0.5), fan**-0.5)

    def add_parameters(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        """Give the layer what it learns beside weight and bias; nothing by default."""

    @property
    def gain(self) -> float:
        """1: J = I - W' C D W with slopes 0 <= D <= I and W' C W <= 2 I lies between -I and I.

        An activation that took the place of the first one is checked as that one was.
        """
        check_activation(self.activation, type(self).__name__)
        return 1.0

    def coefficient_of(self, weight: Float[Tensor, "..."]) -> Float[Tensor, " hidden"]:
        """The step sizes for weights as they are multiplied with, rounded down."""
        return self.coefficient(weight)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """x - W' (c phi(W x + b))."""
        weight = self.weight.to(dtype_in_use(self.weight))
        return step(x, weight, self.bias, self.coefficient_of(weight), self.activation, self.geometry)

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        """The same function with plain parameters; with `dtype`, of the weights in that type, again of constant 1."""
        with torch.no_grad():
            weight = self.weight if dtype is None else self.weight.to(dtype)
            bias = self.bias if dtype is None or self.bias is None else self.bias.to(dtype)
            c, trained = self.coefficient_of(weight), self.weight.requires_grad
            return PlainStep(weight, bias, c, self.activation, self.geometry, trained=trained)

    def extra_repr(self) -> str:
        """Channels, hidden channels and the kernel."""
        g = self.geometry
        kernel = f", kernel_size={g.taps}, dilation={g.dilation}, padding_mode={g.mode.value!r}" if g.taps else ""
        return f"{g.groups * g.cols}, {g.groups * g.rows}{kernel}"


class DenseResidual(ResidualLayer):
    """The constructor of residual layers with matrices."""

    def __init__(
        self,
        features: int,
        hidden: int | None = None,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        steps: int | None = None,
    ) -> None:
        super().__init__(dense(features, hidden), bias, activation, steps, device, dtype)


class ConvResidual(ResidualLayer):
    """The constructor of residual layers with convolutions."""

    def __init__(
        self,
        channels: int,
        kernel_size: int | Shape,
        hidden: int | None = None,
        dilation: int | Shape = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int = 2,
        activation: nn.Module | None = None,
        steps: int | None = None,
    ) -> None:
        geometry = convolution(channels, hidden, kernel_size, dilation, groups, padding_mode, rank)
        super().__init__(geometry, bias, activation, steps, device, dtype)


def dense(features: int, hidden: int | None) -> Geometry:
    """The geometry of a dense residual layer."""
    return Geometry(1, features if hidden is None else hidden, features)


def convolution(
    channels: int,
    hidden: int | None,
    kernel_size: int | Shape,
    dilation: int | Shape,
    groups: int,
    mode: PaddingMode,
    rank: int,
) -> Geometry:
    """The geometry of a convolution that keeps the size of the image: odd kernels, stride 1."""
    taps = (kernel_size,) * rank if isinstance(kernel_size, int) else tuple(kernel_size)
    spread = (dilation,) * len(taps) if isinstance(dilation, int) else tuple(dilation)
    hidden = channels if hidden is None else hidden
    if any(t % 2 == 0 for t in taps) or not 1 <= len(taps) <= 3 or len(spread) != len(taps):
        raise ArgumentError(
            f"A residual convolution has one to three axes, each with an odd kernel and a dilation, got kernel {taps} "
            f"and dilation {spread}; an even kernel would change the size of the image."
        )
    if channels % groups or hidden % groups:
        raise ArgumentError(f"groups must divide channels and hidden channels, got {groups}, {channels} and {hidden}.")
    half = [d * (t - 1) // 2 for t, d in zip(taps, spread, strict=True)]
    sides = tuple((p, p) for p in half)
    return Geometry(groups, hidden // groups, channels // groups, taps, (1,) * len(taps), sides, spread, Padding(mode))
