"""A network as a field: any model that lipkit can read, with the constant that it can prove."""

import copy
import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Self, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.bounds._base import Method, NetworkPrint
from lipkit.certify.radii.forward import Forward
from lipkit.errors import ArgumentError, RecordError, ShapeError
from lipkit.nn import condense
from lipkit.norms._base import plain_arithmetic
from lipkit.sdf._base import Field, Readings
from lipkit.sdf.one_class.orthogonal_mlp import find_widths, orthogonal_mlp


@final
class Network(Field):
    """The field x -> model(x) of a model with one output; the constant is proven for its weights as they are now.

    The model is copied and its weights are computed once, so training goes on without changing the field, and nobody
    else holds the weights that are evaluated. Points are flat; they get the shape of the example before the model sees
    them.

    Guarantee: `bound` certifies. Values are computed in float64 with a running bound of their rounding error.
    Cost: one capture; `bound` is computed when it is first asked for.

    Args:
        model: A module with one output for each sample, (n,) or (n, 1).
        example: Inputs as the model takes them, with a batch axis, of which only the shape is used.
        method: How the constant is proven; the product of norms loses nothing for layers of norm one.
    """

    def __init__(self, model: nn.Module, example: Float[Tensor, "n ..."], method: Method = DAG()) -> None:  # noqa: B008 - immutable
        if not isinstance(example, Tensor) or not example.is_floating_point():
            raise ArgumentError(
                f"An example is a tensor of floating-point numbers, got "
                f"{example.dtype if isinstance(example, Tensor) else type(example).__name__}; convert it."
            )
        shape = tuple(example.shape[1:])
        if len(shape) == 0 or math.prod(shape) == 0:
            raise ShapeError(f"An example has a batch axis and at least one number, got shape {tuple(example.shape)}.")
        self.shape: tuple[int, ...] = shape
        self._method = method
        # Weights from inference mode would have no gradients in the points ever after.
        with torch.inference_mode(False), torch.no_grad():
            self._model = condense(copy.deepcopy(model)).eval().requires_grad_(False)
            flat = _Flat(self._model, shape)
            try:
                out = flat(example[:1].flatten(1))
            except RuntimeError as error:
                raise ShapeError(
                    f"The model does not take an example of shape {tuple(example.shape)} in {example.dtype} ({error}); "
                    "give one with a batch axis, in the type of its weights."
                ) from error
        if out.shape != (1, 1):
            raise ShapeError(
                f"A field has one value for each point, got outputs of shape {tuple(out.shape[1:])}; choose one."
            )
        with torch.inference_mode(False):
            self._forward = Forward(flat, example[:1].detach().flatten(1).clone())

    @property
    def model(self) -> nn.Module:
        """A copy of the model as it is evaluated, with plain weights; changing it does not change the field."""
        return copy.deepcopy(self._model)

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    @property
    def bound(self) -> Bound:
        return self._proven

    @cached_property
    def _proven(self) -> Bound:
        return self._method(self._forward.network)

    def to_state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and strings from which `from_state` makes a field of equal values, without pickle."""
        tensors = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        return tensors, {
            "shape": json.dumps(self.shape),
            "widths": json.dumps(find_widths(self._model)),
            "computes": self._computes,
        }

    @classmethod
    def from_state(
        cls,
        tensors: Mapping[str, Tensor],
        about: Mapping[str, str],
        model: nn.Module | None = None,
        method: Method = DAG(),  # noqa: B008 - immutable
    ) -> Self:
        """The field of a state.

        Guarantee: it computes what the stored one computed, operation by operation and bit by bit, or is refused: a
        hash of both is compared. So a state is of one version of lipkit, as far as it reads models differently.

        Args:
            tensors: Of `to_state`.
            about: Of `to_state`.
            model: The module that the field was made with; only its layers matter. None for the networks that lipkit
                makes itself, as `sdf.Surface` does.
            method: How the constant is proven.
        """
        try:
            shape, widths = tuple(json.loads(about["shape"])), json.loads(about["widths"])
            kind = next((one.dtype for one in tensors.values() if one.is_floating_point()), torch.float64)
            if model is not None:
                layers = condense(copy.deepcopy(model))
            elif widths is None:
                raise ArgumentError("its layers are not known, give the model that it was made with")
            else:
                with torch.random.fork_rng(devices=[]):
                    layers = orthogonal_mlp(math.prod(shape), widths).to(kind)
            layers.load_state_dict(dict(tensors))
            found = cls(layers, torch.zeros(1, *shape, dtype=kind), method)
            same = found._computes == about["computes"]
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise RecordError(
                f"The state is not that of a network as a field ({error}); give what to_state returned, and its model."
            ) from error
        if not same:
            raise RecordError(
                "The state was changed after it was made, or its model has other layers, or another version of lipkit "
                "made it; take an intact copy, or train again."
            )
        return found

    def is_known_to_equal(self, other: Field) -> bool:
        return self is other or (isinstance(other, Network) and self._computes == other._computes)

    @cached_property
    def _computes(self) -> str:
        return NetworkPrint.of(self._forward.network).sha256

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
