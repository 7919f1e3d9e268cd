"""One step of a recurrent layer: a linear map of input and state, then a function of constant 1."""

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.bounded_length import as_logarithm, positive_number
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.core.linear_norm import linear_norm
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.rounding.slacks import ROUNDINGS_32


class Step(Stated):
    """(x, h) -> f(W (x, h) + b) with ||W|| <= 1 and f of constant 1: a map of constant 1 of x and h together.

    Args:
        sizes: Entries of x and of h.
        outputs: Entries of the result.
        inputs: How many numbers f takes for each that it gives.
    """

    def __init__(
        self, sizes: tuple[int, int], outputs: int, inputs: int, bias: bool, method: WeightMethod,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(*sizes, outputs) < 1:
            raise ArgumentError(f"A recurrent layer needs sizes of at least 1, got an input and a state of {sizes}.")
        if dtype is not None and dtype.is_complex:
            raise UnsupportedError(
                f"RNN and GRU, and their cells, are layers of real numbers, got {dtype}; OrthogonalRNN can be complex, "
                "these take the real and the imaginary parts as separate features."
            )
        self.sizes = sizes
        self.linear = Linear(sum(sizes), inputs * outputs, bias, device, dtype, method=method)

    @property
    def gain(self) -> float:
        """The norm of the linear map times the constant of f, in x and h together."""
        return gain_of(self.linear) * self.slope * (1 + ROUNDINGS_32 if self.slope != 1 else 1.0)

    @property
    def slope(self) -> float:
        """The constant of f."""
        return 1.0

    def bound(self) -> Bound:
        """The same for the weight as it is, constrained or plain."""
        return linear_norm(self.linear).scale(self.slope)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The same, on one vector of x and h side by side."""
        if tuple(in_shape) != (sum(self.sizes),):
            raise ShapeError(f"A step takes ({sum(self.sizes)},) entries of input and state, got {tuple(in_shape)}.")
        return self.bound()

    def prepared(self, x: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "wide hidden"]]:
        """The part of W (x, h) + b that does not depend on h, for all tokens at once, and the weight of h.

        The weight is computed once for a whole sequence.
        """
        if x.shape[-1] != self.sizes[0]:
            raise ShapeError(f"A recurrent layer for tokens of {self.sizes[0]} entries got a shape {tuple(x.shape)}.")
        of_x, of_h = self.linear.weight.split(self.sizes, 1)
        return functional.linear(x, of_x, self.linear.bias), of_h

    def advance(self, prepared: Tensor, weight: Tensor, h: Tensor) -> Float[Tensor, "... outputs"]:
        """f of the whole sum."""
        return self.function(prepared + functional.linear(h, weight))

    def forward(self, together: Float[Tensor, "... both"]) -> Float[Tensor, "... outputs"]:
        """f of W (x, h) + b, from x and h side by side."""
        return self.function(self.linear(together))

    @abstractmethod
    def function(self, z: Float[Tensor, "... wide"]) -> Float[Tensor, "... outputs"]:
        """f."""


@final
class PlainStep(Step):
    """f is an activation of constant at most 1."""

    def __init__(
        self, sizes: tuple[int, int], outputs: int, bias: bool, activation: nn.Module | None, method: WeightMethod,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__(sizes, outputs, 1, bias, method, device, dtype)
        self.activation = nn.Tanh() if activation is None else activation
        if gain_of(self.activation) > 1:
            raise ArgumentError(
                f"A recurrent layer needs an activation of constant at most 1, got {activation} with "
                f"{gain_of(self.activation):.4g}; use lipkit.nn.Rescaled, which divides it by that."
            )

    @property
    def slope(self) -> float:
        """The constant of the activation, at least 1: another one may have taken its place."""
        return max(1.0, gain_of(self.activation))

    def function(self, z: Float[Tensor, "... wide"]) -> Float[Tensor, "... outputs"]:
        """The activation."""
        return self.activation(z)


@final
class GatedStep(Step):
    """f mixes two candidates by a gate: f(u, a, b) = g r clip(u / r) + (1 - g) r tanh(b / r), g = sigmoid(a / r).

    clip is to [-1, 1], and r > 0 is learnt, one number for all entries. For r = 1, |u| <= 1 and n = tanh(b), the
    squared gradient in (u, a, b) is at most g^2 + (g (1 - g) (u - n))^2 + (1 - g)^2 <= 1 - 2 p + 4 p^2 with
    p = g (1 - g), because |u - n| <= 2; this is at most 1, as p <= 1/4. Entries of the result have entries of their own
    in u, a and b, so f has constant 1; for another r it is r f(./r), with the same constant. Our derivation.
    """

    def __init__(
        self, sizes: tuple[int, int], outputs: int, bias: bool, length: float, method: WeightMethod,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__(sizes, outputs, 3, bias, method, device, dtype)
        start = as_logarithm(length, "length")
        self.log_length = nn.Parameter(torch.full((), start, device=device, dtype=dtype))

    def function(self, z: Float[Tensor, "... wide"]) -> Float[Tensor, "... outputs"]:
        """The mixture of the candidates."""
        length = positive_number(self.log_length, z)
        kept, gate, new = (z / length).chunk(3, -1)
        new = new.tanh()
        return (new + gate.sigmoid() * (kept.clamp(-1.0, 1.0) - new)) * length
