"""Recurrent layers whose state is carried on by an orthogonal matrix."""

import math
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn
from torch.nn import functional

from lipkit._compilers import constant_for_compilers
from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.activations.absolute import Absolute
from lipkit.nn.activations.mod_relu import ModReLU
from lipkit.nn.core.gain import covers_complex, gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.nn.core.linear_norm import linear_norm
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class OrthogonalRNN(Stated):
    """h_t = f(Q h_(t-1) + V x_t + b), all states divided by c(T), with Q orthogonal and ||V|| <= 1 by `method`.

    The state forgets nothing by itself: an isometry f, such as the default, keeps its norm, and gradients keep theirs
    over any number of steps. For the same reason the states cannot have one constant for every length: with f the
    identity and Q = V = 1 they are the sums of the inputs so far. |dh_t| <= |dx_1| + ... + |dx_t|, so
        c(T) = the norm of the T x T matrix of ones on and below the diagonal = 1 / (2 sin(pi / (4 T + 2))).

    Guarantee: constant 1 for all states together, for sequences up to `tokens`, divided by c(tokens); with None, each
    by the c of its own length. `RNN` needs no division, and forgets. Cost: one product a token.
    Reference: Lezcano-Casado, Martinez-Rubio 2019 (expRNN, with method=Exponential()); Arjovsky, Shah and Bengio 2016
    (unitary); the constant is ours.

    Args:
        input_size: Entries of a token.
        hidden_size: Entries of the state.
        bias: Whether there is a bias.
        tokens: Length of the longest sequence; None divides each sequence by the constant of its own length.
        dtype: Type of the weights; complex ones make a unitary Q, and take complex tokens.
        activation: f, of constant at most 1; `Absolute()` if None, `ModReLU(hidden_size)` for complex numbers.
        method: Computes Q and V from free numbers.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        tokens: int | None = None,
        activation: nn.Module | None = None,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        if tokens is not None and tokens < 1:
            raise ArgumentError(
                f"OrthogonalRNN.tokens is the length of the longest sequence, at least 1, got {tokens}."
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.tokens = tokens
        self.activation = _default(hidden_size, device, dtype) if activation is None else activation
        if dtype is not None and dtype.is_complex and not covers_complex(self.activation):
            raise UnsupportedError(
                f"OrthogonalRNN in {dtype} needs an activation whose constant holds for complex numbers, got "
                f"{activation}; use lipkit.nn.ModReLU(hidden_size)."
            )
        self.input = Linear(input_size, hidden_size, bias, device, dtype, method=method)
        self.state = Linear(hidden_size, hidden_size, False, device, dtype, method=method)
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
    def gain(self) -> float:
        """The norm of V: 1, for every length; refused where a state may grow from step to step."""
        grown = gain_of(self.state) * gain_of(self.activation)
        if grown > 1:
            raise UnsupportedError(
                f"The state of OrthogonalRNN may grow by {grown:.6g} in a step, because its weight has fewer digits "
                "than float32 or its activation was exchanged: no constant holds for every length; use "
                "`declared_lipschitz` for one length."
            )
        return gain_of(self.input) * max(1.0, gain_of(self.activation)) * (1 + ROUNDINGS_32)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """|V| max(1, |Q|)^(T - 1) for the weights as they are, on one sequence (tokens, input_size)."""
        tokens = self._length(tuple(in_shape))
        slope = max(1.0, gain_of(self.activation))
        found, carried = linear_norm(self.input).scale(slope), linear_norm(self.state).scale(slope)
        if float(carried.value.detach()) > 1:
            for _ in range(tokens - 1):
                found = found.compose(carried)
        return found

    def forward(self, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """All states, divided."""
        if x.ndim != 3:
            raise ShapeError(f"OrthogonalRNN takes batches of sequences, got {tuple(x.shape)}; give one as x[None].")
        tokens = self._length(tuple(x.shape[1:]))
        ready, weight = self.input(x), self.state.weight
        h = ready.new_zeros(len(x), self.hidden_size)
        states: list[Tensor] = []
        for part in ready.unbind(1):
            h = self.activation(part + functional.linear(h, weight))
            states.append(h)
        # A compiled program of a model without `tokens` is for one length.
        return torch.stack(states, 1) * _factor(int(tokens) if self.tokens is None else self.tokens)

    def _length(self, shape: tuple[int, ...]) -> int:
        if len(shape) != 2 or shape[1] != self.input_size or not shape[0]:
            raise ShapeError(
                f"OrthogonalRNN takes sequences (tokens, {self.input_size}) of at least one token after the batch, got "
                f"{shape}."
            )
        if self.tokens is not None and shape[0] > self.tokens:
            raise ShapeError(
                f"OrthogonalRNN has its constant for at most {self.tokens} tokens, got {shape[0]}; build it with more "
                "tokens, or with tokens=None."
            )
        return shape[0]


def _default(size: int, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
    return ModReLU(size, 0.01, device=device, dtype=dtype) if dtype is not None and dtype.is_complex else Absolute()


@constant_for_compilers
def _factor(tokens: int) -> float:
    return SAFE * 2 * math.sin(math.pi / (4 * tokens + 2))
