"""Smooth activations divided by their largest slope."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.nn.core import slopes
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Contraction, EveryNorm, at_least_one


@final
class GELU(EveryNorm, Contraction):
    """GELU / 1.1289..., the slope of GELU at sqrt(2); with `tanh`, its tanh form divided by its own largest slope.

    Guarantee: constant 1. The factor is rounded down.

    Args:
        tanh: Whether the tanh form is taken.
    """

    def __init__(self, tanh: bool = False) -> None:
        super().__init__()
        self.tanh = tanh
        self.factor = SAFE / (slopes.GELU_TANH if tanh else slopes.GELU)

    def forward(self, x: Tensor) -> Tensor:
        """gelu(x) times the factor."""
        return functional.gelu(x, approximate="tanh" if self.tanh else "none") * self.factor


@final
class SiLU(EveryNorm, Contraction):
    """SiLU / 1.0998..., the largest slope of x sigmoid(x). Guarantee: constant 1. The factor is rounded down."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = SAFE / slopes.SILU

    def forward(self, x: Tensor) -> Tensor:
        """silu(x) times the factor."""
        return functional.silu(x) * self.factor


@final
class Mish(EveryNorm, Contraction):
    """Mish / 1.0885..., the largest slope of x tanh(softplus(x)). Guarantee: constant 1. The factor is rounded down."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = SAFE / slopes.MISH

    def forward(self, x: Tensor) -> Tensor:
        """mish(x) times the factor."""
        return functional.mish(x) * self.factor


@final
class Softplus(EveryNorm, Contraction):
    """log(1 + exp(beta x)) / beta: its slope is a sigmoid, at most 1, so it needs no factor.

    torch's version jumps by 2e-9 / beta where it switches to x; this one does not switch. Guarantee: constant 1.

    Args:
        beta: Sharpness: larger ones are nearer to ReLU.
    """

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if beta == 0 or not abs(beta) < float("inf"):
            raise ArgumentError(f"Softplus.beta must be a finite number other than 0, got {beta}.")
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        """-logsigmoid(-beta x) / beta, which neither overflows nor switches."""
        return -functional.logsigmoid(-self.beta * x) / self.beta


@final
class Rescaled(Contraction):
    """A module divided by its own constant where that is above 1, e.g. Rescaled(nn.SELU()).

    Guarantee: constant 1. A module whose constant is not known is refused.

    Args:
        module: A module whose constant is known, see `gain_of`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        gain = gain_of(module)
        self.factor = SAFE / gain if gain > 1 else 1.0

    @property
    def gain(self) -> float:
        """1 while the module has the constant it was built with; of another one, what that makes of it."""
        return at_least_one(gain_of(self.module), self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """The module's output times the factor."""
        return self.module(x) * self.factor

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:.6g}"
