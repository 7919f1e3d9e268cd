"""A network as a field: any model that lipkit can read, with the constant that it can prove."""

import copy
import math
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.bounds._base import Method
from lipkit.certify.radii.forward import Forward
from lipkit.errors import ShapeError
from lipkit.nn import condense
from lipkit.norms._base import plain_arithmetic
from lipkit.sdf._base import Field, Readings


@final
class Network(Field):
    """The field x -> model(x) of a model with one output; the constant is proven for its weights as they are now.

    The model is copied and its weights are computed once, so training goes on without changing the field. Points are
    flat; they get the shape of the example before the model sees them.

    Guarantee: `bound` certifies. Values are computed in float64 with a running bound of their rounding error.
    Cost: one capture; `bound` is computed when it is first asked for.

    Args:
        model: A module with one output for each sample, (n,) or (n, 1).
        example: Inputs as the model takes them, with a batch axis, of which only the shape is used.
        method: How the constant is proven; the product of norms loses nothing for layers of norm one.
    """

    def __init__(self, model: nn.Module, example: Float[Tensor, "n ..."], method: Method = DAG()) -> None:  # noqa: B008 - immutable
        shape = tuple(example.shape[1:])
        if len(shape) == 0 or math.prod(shape) == 0:
            raise ShapeError(f"An example has a batch axis and at least one number, got shape {tuple(example.shape)}.")
        self.model: nn.Module = condense(copy.deepcopy(model)).eval().requires_grad_(False)
        self.shape: tuple[int, ...] = shape
        self._method = method
        flat = _Flat(self.model, shape)
        with torch.no_grad():
            out = flat(example[:1].flatten(1))
        if out.shape != (1, 1):
            raise ShapeError(
                f"A field has one value for each point, got outputs of shape {tuple(out.shape[1:])}; choose one."
            )
        self._forward = Forward(flat, example[:1].flatten(1))

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    @property
    def bound(self) -> Bound:
        return self._proven

    @cached_property
    def _proven(self) -> Bound:
        return self._method(self._forward.network)

    def _values(self, points: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        with plain_arithmetic():
            return self._forward.network.values(points)[-1].flatten()

    def _errors(self, points: Float64[Tensor, "n d"], values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        del values
        return self._measure(points).error

    def _measure(self, points: Float64[Tensor, "n d"]) -> Readings:
        found = self._forward(points)
        return Readings(found.value.flatten(), found.error)


class _Flat(nn.Module):
    """The model behind a change of shape, its single output with an axis of its own."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        out = self.model(points.unflatten(1, self.shape))
        return out.unsqueeze(1) if out.ndim == 1 else out.flatten(1)
