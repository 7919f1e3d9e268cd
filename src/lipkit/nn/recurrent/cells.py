"""Recurrent cells, one step at a time, with a constant in input and state together."""

from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor, nn

from lipkit.errors import ShapeError
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.recurrent.orthogonal_step import OrthogonalStep
from lipkit.nn.recurrent.steps import GatedStep, PlainStep, Step


class _Cell(nn.Module):
    """A cell around one step; without a state it starts from zeros, as torch's cells do.

    The step declares the constant, as a function of x and h side by side. A constant of the cell itself would not say
    of which of its two inputs: cell(x, x) has sqrt(2) of it.
    """

    step: Step | OrthogonalStep

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size

    @property
    def gain(self) -> float:
        """The constant in x and h side by side; in few digits the most that rounding makes of it."""
        return self.step.gain

    def forward(self, x: Inexact[Tensor, "..."], h: Inexact[Tensor, "..."] | None = None) -> Inexact[Tensor, "..."]:
        """The next state."""
        if x.ndim < 1 or x.shape[-1] != self.input_size:
            raise ShapeError(f"{type(self).__name__} takes {self.input_size} entries at a time, got {tuple(x.shape)}.")
        state = x.new_zeros(*x.shape[:-1], self.hidden_size) if h is None else h
        if tuple(state.shape) != (*x.shape[:-1], self.hidden_size):
            raise ShapeError(
                f"{type(self).__name__}({self.input_size}, {self.hidden_size}) got a state of shape "
                f"{tuple(state.shape)} for an input of shape {tuple(x.shape)}; their batches must agree."
            )
        return self.step(torch.cat((x, state), -1))


@final
class RNNCell(_Cell):
    """h' = f(W (x, h) + b) with ||W|| <= 1 by `method` and an activation f of constant 1.

    Guarantee: |h' - g'|^2 <= |x - y|^2 + |h - g|^2. So after any number of steps the last state is a 1-Lipschitz
    function of the whole sequence and the first state. Cost: one product.

    Args:
        input_size: Entries of x.
        hidden_size: Entries of the state.
        bias: Whether there is a bias.
        activation: f; nn.Tanh() if None. `MaxMin`, which keeps norms, forgets less.
        method: Computes W from free numbers; all of W together has norm 1, so its part for h is no isometry.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: nn.Module | None = None,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.step = PlainStep((input_size, hidden_size), hidden_size, bias, activation, method, device, dtype)
        _ = self.gain


@final
class GRUCell(_Cell):
    """h' = g u + (1 - g) n, a gate between two candidates, all from one matrix of norm at most 1: see `GatedStep`.

    (u, a, b) = W (x, h) + bias, g = sigmoid(a/r), u clipped to [-r, r], n = r tanh(b/r), with a learnt r > 0. torch's
    gated unit keeps h itself in the place of u, and multiplies h by a second gate; on the whole space it has no
    constant, and neither has its long short-term memory, because gates multiply states of any size.

    Guarantee: |h' - g'|^2 <= |x - y|^2 + |h - g|^2, as of `RNNCell`. Cost: one product. Our derivation.

    Args:
        input_size: Entries of x.
        hidden_size: Entries of the state.
        bias: Whether there is a bias.
        length: r at the start: the size of numbers for which gates open and close.
        method: Computes W from free numbers.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        length: float = 1.0,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.step = GatedStep((input_size, hidden_size), hidden_size, bias, length, method, device, dtype)
        _ = self.gain


@final
class OrthogonalRNNCell(_Cell):
    """h' = f(Q h + V x + b) with Q orthogonal, ||V|| <= 1 by `method`, and an activation f of constant 1.

    The state is not divided, as `OrthogonalRNN` divides it, so it forgets nothing by itself.

    Guarantee: |h' - g'| <= |x - y| + |h - g|, constant sqrt(2) in x and h side by side. After T steps the last state
    has constant sqrt(T) in the whole sequence, and all states together 1 / (2 sin(pi / (4 T + 2))), about 2 T / pi.
    Cost: two products. Reference: as of `OrthogonalRNN`.

    Args:
        input_size: Entries of x.
        hidden_size: Entries of the state.
        bias: Whether there is a bias.
        dtype: Type of the weights; complex ones make a unitary Q, and take complex inputs.
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
        activation: nn.Module | None = None,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.step = OrthogonalStep((input_size, hidden_size), bias, activation, method, device, dtype)
