"""One step of a recurrent layer whose state is carried on by an orthogonal matrix."""

import math
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.activations.absolute import Absolute
from lipkit.nn.activations.mod_relu import ModReLU
from lipkit.nn.core.gain import covers_complex, gain_of
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.core.linear_norm import linear_norm
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class OrthogonalStep(Stated):
    """(x, h) -> f(Q h + V x + b) with Q orthogonal, ||V|| <= 1 and f of constant 1: |dh'| <= |dx| + |dh|.

    So the constant in x and h together, as one vector, is sqrt(2); it is attained, because [V Q] [V Q]' = V V' + I.

    Args:
        sizes: Entries of x and of h.
    """

    def __init__(
        self, sizes: tuple[int, int], bias: bool, activation: nn.Module | None, method: WeightMethod,
        device: torch.device | None, dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.sizes = sizes
        inputs, hidden = sizes
        self.activation = _default(hidden, device, dtype) if activation is None else activation
        if dtype is not None and dtype.is_complex and not covers_complex(self.activation):
            raise UnsupportedError(
                f"OrthogonalRNN in {dtype} needs an activation whose constant holds for complex numbers, got "
                f"{activation}; use lipkit.nn.ModReLU(hidden_size)."
            )
        self.input = Linear(inputs, hidden, bias, device, dtype, method=method)
        self.state = Linear(hidden, hidden, False, device, dtype, method=method)
        # Refuses methods that say nothing in l2.
        _ = gain_of(self.input)
        if gain_of(self.activation) > 1:
            raise ArgumentError(
                f"OrthogonalRNN needs an activation of constant at most 1, got {activation} with "
                f"{gain_of(self.activation):.4g}; use lipkit.nn.Rescaled, which divides it by that."
            )

    @property
    def covers_complex(self) -> bool:
        """Whether the activation does."""
        return covers_complex(self.activation)

    @property
    def slope(self) -> float:
        """The constant of the activation, at least 1: another one may have taken its place."""
        return max(1.0, gain_of(self.activation))

    @property
    def gain(self) -> float:
        """The root of the sum of squares of ||V|| and ||Q||, times the constant of f: sqrt(2)."""
        return math.hypot(gain_of(self.input), gain_of(self.state)) * self.slope * (1 + ROUNDINGS_32)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """sqrt(2) max(||V||, ||Q||) for the weights as they are, on one vector of x and h side by side."""
        if tuple(in_shape) != (sum(self.sizes),):
            raise ShapeError(f"A step takes ({sum(self.sizes)},) entries of input and state, got {tuple(in_shape)}.")
        both = Bound.from_value(math.sqrt(2) * (1 + ROUNDINGS_32), Kind.UPPER, "input and state side by side")
        return both.compose(linear_norm(self.input).max(linear_norm(self.state))).scale(self.slope)

    def sequence_bound(self, tokens: int) -> Bound:
        """|V| max(1, |Q|)^(T - 1) for the weights as they are: a bound of |dh_T| / (|dx_1| + ... + |dx_T|)."""
        found, carried = (linear_norm(part).scale(self.slope) for part in (self.input, self.state))
        if float(carried.value.detach()) > 1:
            for _ in range(tokens - 1):
                found = found.compose(carried)
        return found

    def prepared(self, x: Inexact[Tensor, "..."]) -> tuple[Inexact[Tensor, "..."], Inexact[Tensor, "hidden hidden"]]:
        """V x + b, for all tokens at once, and Q, which is computed once for a whole sequence."""
        if x.shape[-1] != self.sizes[0]:
            raise ShapeError(f"A recurrent layer for tokens of {self.sizes[0]} entries got a shape {tuple(x.shape)}.")
        return self.input(x), self.state.weight

    def advance(self, prepared: Tensor, weight: Tensor, h: Tensor) -> Inexact[Tensor, "... hidden"]:
        """f of the whole sum."""
        return self.activation(prepared + functional.linear(h, weight))

    def forward(self, together: Inexact[Tensor, "... both"]) -> Inexact[Tensor, "... hidden"]:
        """The next state, from x and h side by side."""
        x, h = together.split(self.sizes, -1)
        return self.advance(*self.prepared(x), h)


def _default(size: int, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
    return ModReLU(size, 0.01, device=device, dtype=dtype) if dtype is not None and dtype.is_complex else Absolute()
