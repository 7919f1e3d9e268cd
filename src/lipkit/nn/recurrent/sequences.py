"""Recurrent layers over whole sequences, with one constant for every length."""

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.recurrent.steps import GatedStep, PlainStep, Step


class _Recurrent(Stated):
    """(x_1, ..., x_T) -> (y_1, ..., y_T) with (y_t, h_t) = step(x_t, h_(t-1)) and h_0 = 0, in several layers.

    A step of constant 1 in all it takes and gives has |dy_t|^2 + |dh_t|^2 <= |dx_t|^2 + |dh_(t-1)|^2. The sum over t is
    |dy|^2 + |dh_T|^2 <= |dx|^2: what goes out came in. With a step of constant g > 1 it is at most g^(2T) |dx|^2.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        if num_layers < 1:
            raise ArgumentError(f"{type(self).__name__}.num_layers is at least 1, got {num_layers}.")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers

    def build(self) -> None:
        """Make the steps of all layers; the end of a constructor."""
        sizes = [self.input_size, *[self.hidden_size] * (self.num_layers - 1)]
        self.steps = nn.ModuleList(self.step((size, self.hidden_size), 2 * self.hidden_size) for size in sizes)
        # One step of a constant above 1 would have none for all lengths.
        if self.linear_steps[0].linear.weight.dtype in (torch.float32, torch.float64):
            _ = self.gain

    @abstractmethod
    def step(self, sizes: tuple[int, int], outputs: int) -> Step:
        """One step."""

    @property
    def linear_steps(self) -> list[Step]:
        """The steps of all layers."""
        return [step for step in self.steps if isinstance(step, Step)]

    @property
    def gain(self) -> float:
        """1, for every length; refused where a step may have more, because that would grow with the length."""
        if any(step.gain > 1 for step in self.linear_steps):
            raise UnsupportedError(
                f"A step of {type(self).__name__} may have a constant above 1, because its weight has fewer digits "
                "than float32 or its activation was exchanged: no constant holds for every length; use "
                "`declared_lipschitz` for one length."
            )
        return 1.0

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """max(1, g)^T for each layer, with the constant g of its step as it is, on one input (tokens, input_size)."""
        self._check(tuple(in_shape))
        found = Bound.from_value(1.0, Kind.UPPER, f"by construction of {type(self).__name__}")
        for step in self.linear_steps:
            one = Bound.from_value(1.0, Kind.UPPER, "what a step keeps").max(step.bound())
            if float(one.value.detach()) > 1:
                for _ in range(in_shape[0]):
                    found = found.compose(one)
        return found

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The outputs of the last layer, for all tokens."""
        if x.ndim != 3:
            raise ShapeError(
                f"{type(self).__name__} takes batches (batch, tokens, {self.input_size}), got an input of shape "
                f"{tuple(x.shape)}; give one sequence as x[None]."
            )
        self._check(tuple(x.shape[1:]))
        for step in self.linear_steps:
            ready, weight = step.prepared(x)
            h = ready.new_zeros(len(x), self.hidden_size)
            outputs: list[Tensor] = []
            for part in ready.unbind(1):
                y, h = step.advance(part, weight, h).chunk(2, -1)
                outputs.append(y)
            x = torch.stack(outputs, 1)
        return x

    def _check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] != self.input_size or not shape[0]:
            raise ShapeError(
                f"{type(self).__name__} takes sequences (tokens, {self.input_size}) of at least one token after the "
                f"batch, got {shape}."
            )


@final
class RNN(_Recurrent):
    """(y_t, h_t) = f(W (x_t, h_(t-1)) + b) over a sequence, with ||W|| <= 1 and an activation f of constant 1.

    Inputs are (batch, tokens, input_size), outputs (batch, tokens, hidden_size). Unlike torch's layer the output y_t is
    not the state h_t, which has hidden_size entries of its own: a state that is kept and given out at every step would
    be counted at every step, so that the constant would be sqrt(tokens).

    Guarantee: constant 1 for the whole sequence, of every length. Cost: one product a token and layer; the weight is
    computed once a call. Our form; for systems that give out no more than they take see the theory of passive systems.

    Args:
        input_size: Entries of a token.
        hidden_size: Entries of the state, and of an output.
        num_layers: Number of layers, one upon the other.
        bias: Whether there are biases.
        activation: f; nn.Tanh() if None. All layers use the same module.
        method: Computes W from free numbers.
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
        activation: nn.Module | None = None,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        self.settings = bias, activation, method, device, dtype
        self.build()

    def step(self, sizes: tuple[int, int], outputs: int) -> Step:
        """A linear map and the activation."""
        return PlainStep(sizes, outputs, *self.settings)


@final
class GRU(_Recurrent):
    """`RNN` with gates: (y_t, h_t) = g u + (1 - g) n, from (u, a, b) = W (x_t, h_(t-1)) + bias. See `GRUCell`.

    Guarantee: constant 1 for the whole sequence, of every length. Cost: as of `RNN`, with three times the product.

    Args:
        input_size: Entries of a token.
        hidden_size: Entries of the state, and of an output.
        num_layers: Number of layers, one upon the other.
        bias: Whether there are biases.
        length: The size of numbers for which gates open and close, at the start.
        method: Computes W from free numbers.
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
        length: float = 1.0,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        self.settings = bias, length, method, device, dtype
        self.build()

    def step(self, sizes: tuple[int, int], outputs: int) -> Step:
        """A linear map and the gate."""
        return GatedStep(sizes, outputs, *self.settings)
