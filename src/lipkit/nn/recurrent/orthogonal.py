"""Recurrent layers whose state is carried on by an orthogonal matrix."""

import math
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn

from lipkit._compilers import constant_for_compilers
from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.gain import covers_complex, gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.recurrent.orthogonal_step import OrthogonalStep
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class OrthogonalRNN(Stated):
    """h_t = f(Q h_(t-1) + V x_t + b), all states divided by c(T), with Q orthogonal and ||V|| <= 1 by `method`.

    The state forgets nothing by itself: an isometry f, such as the default, keeps its norm, and gradients keep theirs
    over any number of steps. For the same reason the states cannot have one constant for every length: with f the
    identity and Q = V = 1 they are the sums of the inputs so far. |dh_t| <= |dx_1| + ... + |dx_t|, so
        c(T) = the norm of the T x T matrix of ones on and below the diagonal = 1 / (2 sin(pi / (4 T + 2))).

    Guarantee: constant 1 for all states together, for sequences up to `tokens`, divided by c(tokens); with None, each
    by the c of its own length. Each of several layers divides its states. `RNN` needs no division, and forgets.
    `OrthogonalRNNCell` is one step, without division. Cost: one product a token and layer.
    Reference: Lezcano-Casado, Martinez-Rubio 2019 (expRNN, with method=Exponential()); Arjovsky, Shah and Bengio 2016
    (unitary); the constant is ours.

    Args:
        input_size: Entries of a token.
        hidden_size: Entries of the state.
        num_layers: Number of layers, one upon the other.
        bias: Whether there are biases.
        tokens: Length of the longest sequence; None divides each sequence by the constant of its own length.
        dtype: Type of the weights; complex ones make a unitary Q, and take complex tokens.
        activation: f, of constant at most 1, the same module in all layers; if None, each layer has an `Absolute()`,
            or a `ModReLU(hidden_size)` for complex numbers.
        method: Computes Q and V from free numbers.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        tokens: int | None = None,
        activation: nn.Module | None = None,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ArgumentError(f"OrthogonalRNN.num_layers is at least 1, got {num_layers}.")
        if tokens is not None and tokens < 1:
            raise ArgumentError(
                f"OrthogonalRNN.tokens is the length of the longest sequence, at least 1, got {tokens}."
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.tokens = tokens
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.steps = nn.ModuleList(
            OrthogonalStep((size, hidden_size), bias, activation, method, device, dtype) for size in sizes
        )

    @property
    def orthogonal_steps(self) -> list[OrthogonalStep]:
        """The steps of all layers."""
        return [step for step in self.steps if isinstance(step, OrthogonalStep)]

    @property
    def covers_complex(self) -> bool:
        """Whether the activations do."""
        return all(covers_complex(step) for step in self.orthogonal_steps)

    @property
    def gain(self) -> float:
        """The norms of V of all layers: 1, for every length; refused where a state may grow from step to step."""
        total = 1.0
        for step in self.orthogonal_steps:
            grown = gain_of(step.state) * gain_of(step.activation)
            if grown > 1:
                raise UnsupportedError(
                    f"The state of OrthogonalRNN may grow by {grown:.6g} in a step, because its weight has fewer "
                    "digits than float32 or its activation was exchanged: no constant holds for every length; use "
                    "`declared_lipschitz` for one length."
                )
            total *= gain_of(step.input) * step.slope * (1 + ROUNDINGS_32)
        return total

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """|V| max(1, |Q|)^(T - 1) of all layers, for the weights as they are, on one sequence (tokens, input_size)."""
        tokens = self._length(tuple(in_shape))
        first, *others = (step.sequence_bound(tokens) for step in self.orthogonal_steps)
        for layer in others:
            first = layer.compose(first)
        return first

    def forward(self, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """All states of the last layer, divided."""
        if x.ndim != 3:
            raise ShapeError(f"OrthogonalRNN takes batches of sequences, got {tuple(x.shape)}; give one as x[None].")
        tokens = self._length(tuple(x.shape[1:]))
        # A compiled program of a model without `tokens` is for one length.
        factor = _factor(int(tokens) if self.tokens is None else self.tokens)
        for step in self.orthogonal_steps:
            ready, weight = step.prepared(x)
            h = ready.new_zeros(len(x), self.hidden_size)
            states: list[Tensor] = []
            for part in ready.unbind(1):
                h = step.advance(part, weight, h)
                states.append(h)
            x = torch.stack(states, 1) * factor
        return x

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


@constant_for_compilers
def _factor(tokens: int) -> float:
    return SAFE * 2 * math.sin(math.pi / (4 * tokens + 2))
