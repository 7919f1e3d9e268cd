"""Steps of contractive differential equations: along a convex potential, then around the origin."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.layers.conv import Conv1d, Conv2d, Conv3d, PaddingMode
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import Blocks, Promise
from lipkit.nn.methods._isometry import IsometryMethod
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.residual.cpl import CPL, CPLConv
from lipkit.rounding.slacks import ROUNDINGS_32

_CONVOLUTIONS = {1: Conv1d, 2: Conv2d, 3: Conv3d}


@final
@dataclass(frozen=True)
class MidpointRotation(IsometryMethod):
    """The implicit midpoint rule for x' = S x over `time`: (I - t/2 S)^-1 (I + t/2 S), orthogonal for skew S.

    S = 2 (U' - U) for the free matrix U, so this is `Cayley` of t U. Guarantee and cost: those of `Cayley`.

    Args:
        time: Length of the step.
    """

    time: float

    def __str__(self) -> str:
        return f"midpoint rotation over {self.time:g}"

    def promise(self, geometry: Geometry) -> Promise:
        if geometry.rows != geometry.cols:
            raise UnsupportedError(
                f"A rotation has as many outputs as inputs, got {geometry.rows} and {geometry.cols}; use Cayley."
            )
        return super().promise(geometry)

    def isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        return Cayley().isometry(tall * self.time)

    def inverse_isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        return Cayley().inverse_isometry(tall) / self.time

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        return Cayley().is_feasible(weight, geometry)

    def start(self, geometry: Geometry) -> Blocks:
        """The rotation of a free matrix with normal entries of standard deviation 0.1/sqrt(n): near the identity."""
        raw = torch.randn(geometry.groups, geometry.rows, geometry.cols) * 0.1 * geometry.cols**-0.5
        return self.matrix(raw).reshape(geometry.shape)


class _ContractiveStep(Stated):
    """A step down a convex potential, of length `time`, and a rotation over `time`."""

    def __init__(self, descent: nn.Module, rotation: nn.Module, time: float) -> None:
        super().__init__()
        self.descent = descent
        self.rotation = rotation
        self.time = time

    @property
    def gain(self) -> float:
        """1 in float32 and float64: x + t (step(x) - x) is convex in the identity and a map of constant 1.

        In fewer digits, the most that rounding makes of the rotation.
        """
        parts = max(1.0, gain_of(self.descent)) * gain_of(self.rotation)
        return parts if parts == 1 else parts * (1 + ROUNDINGS_32)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Q (x - t W' (c phi(W x + b)))."""
        lower = self.descent(x)
        return self.rotation(lower if self.time == 1 else x + (lower - x) * self.time)

    def extra_repr(self) -> str:
        """The length of the step."""
        return f"time={self.time:g}"


@final
class ContractiveStep(_ContractiveStep):
    """One step of x' = -W' (c phi(W x + b)) + S x with c = 2/||W||^2 and skew S, over a time t in (0, 1]:
        y = x - t W' (c phi(W x + b)),   z = (I - t/2 S)^-1 (I + t/2 S) y.

    The first part is the gradient of a convex function for non-decreasing phi with slopes of at most one (checked; ReLU
    if none is given), so solutions of the equation never move apart; no more do steps: Euler's is a contraction for
    t <= 1, as `CPL`, and the midpoint rule makes a rotation of the second part. S = 2 (U' - U) for the free numbers U
    of `rotation`. Steps over t/n tend to the solution as n grows, with an error of order 1/n.

    Guarantee: constant 1. Cost: that of `CPL`, a product, and `Cayley`. Reference: Meunier et al. 2022 for the equation
    (also Béthune 2024, eq. 2.4; see docs/errata.md); the splitting is ours.

    Args:
        features: Entries of an input, on its last axis; the output has as many.
        hidden: Rows of W; `features` if None.
        time: Length of the step, in (0, 1].
        activation: phi; nn.ReLU() if None.
        steps: Gram products that bound ||W||, 6 if None; more give longer steps.
    """

    def __init__(
        self,
        features: int,
        hidden: int | None = None,
        time: float = 1.0,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        steps: int | None = None,
    ) -> None:
        method = MidpointRotation(_checked(time))
        descent = CPL(features, hidden, bias, device, dtype, activation=activation, steps=steps)
        super().__init__(descent, Linear(features, features, False, device, dtype, method=method), time)


@final
class ContractiveStepConv(_ContractiveStep):
    """`ContractiveStep` on images: W is a convolution as in `CPLConv`, and the rotation turns the channels of a pixel.

    Args:
        channels: Channels of input and output.
        kernel_size: Taps of W on each axis, odd; one number for all `rank` axes.
        hidden: Channels of W x; `channels` if None.
        time: Length of the step, in (0, 1].
        rank: Number of spatial axes where `kernel_size` is one number.
        activation: phi; nn.ReLU() if None.
        steps: Gram products that bound the norm, 6 if None.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | Shape,
        hidden: int | None = None,
        time: float = 1.0,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int = 2,
        activation: nn.Module | None = None,
        steps: int | None = None,
    ) -> None:
        method = MidpointRotation(_checked(time))
        descent = CPLConv(
            channels, kernel_size, hidden, 1, 1, bias, padding_mode, device, dtype, rank=rank, activation=activation,
            steps=steps,
        )  # fmt: skip
        turn = _CONVOLUTIONS[len(descent.geometry.taps)]
        super().__init__(
            descent, turn(channels, channels, 1, bias=False, device=device, dtype=dtype, method=method), time
        )


def _checked(time: float) -> float:
    if not 0 < time <= 1:
        raise ArgumentError(
            f"ContractiveStep.time must lie in (0, 1], got {time}: a longer step down the potential is no contraction; "
            "take several steps."
        )
    return time
