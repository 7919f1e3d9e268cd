"""The linear layers of an ordinary model, each as the operator it is on its true input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.errors import ArgumentError
from lipkit.linops import Dense, LinearOperator, Shape, of

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Example = Tensor | Sequence[Any] | Mapping[str, Any]


@final
@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer at one input shape: its name in the model, and where its operator is read from."""

    name: str
    module: nn.Module
    in_shape: Shape
    read: Callable[[], LinearOperator]

    def operator(self) -> LinearOperator:
        """The layer without its bias as it is now, over live tensors: gradients reach the parameters."""
        return self.read()

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters that training may change, also those a parametrization computes the weight from."""
        return tuple(p for p in self.module.parameters() if p.requires_grad)


def layers_of(model: nn.Module, example: Example) -> tuple[LinearLayer, ...]:
    """Every nn.Linear, convolution and attention projection of a model, at the shapes that `example` leads to.

    One evaluation of the model, in evaluation mode and without gradients, tells the input shape of each convolution;
    call this once and use the result at every step, as long as shapes and modules stay. A matrix has the same norm at
    every position, so nn.Linear counts once, used or not; a convolution once for each shape it is used at. Constrained
    layers of `lipkit.nn` are layers too. nn.MultiheadAttention gives `.query`, `.key`, `.value` and its `.out_proj`.
    Normalisation layers are not listed: constraining them as well is unstable (Delattre 2025, section 4.4).

    Cost: one evaluation. Limits: a convolution that the example does not reach is refused, because its shape is
    unknown; matrices that are no module of these kinds are not seen: `BoundPenalty` counts everything.

    Args:
        model: Any torch model; it is run once in evaluation mode.
        example: Its input: a tensor, a sequence of arguments, or a mapping of keyword arguments, with a batch axis.
    """
    shapes = _shapes(model, example)
    missing = [name for name, module in model.named_modules() if isinstance(module, Convolution) and name not in shapes]
    if missing:
        raise ArgumentError(
            f"The example does not reach {', '.join(missing)}, whose input shape is therefore unknown; "
            "give an example that does, or remove what is not used."
        )
    found = tuple(_linear_layers(model, shapes))
    if not found:
        raise ArgumentError(f"{type(model).__name__} has no linear or convolutional layer, and no attention.")
    return found


def sum_over_layers(
    owner: object, layers: Sequence[LinearLayer], term: Callable[[LinearOperator], Tensor]
) -> Float[Tensor, ""]:
    """The sum of a penalty's terms, one for the operator of each layer, on the device of the first."""
    check_layers(owner, layers)
    terms = [term(layer.operator()) for layer in layers]
    return torch.stack([one.to(terms[0]) for one in terms]).sum()


def check_layers(owner: object, layers: Sequence[LinearLayer]) -> None:
    """Refuse an empty list of layers, with the name of the penalty that got it."""
    if not layers:
        raise ArgumentError(f"{type(owner).__name__} got no layers; find them with layers_of(model, example).")


def _linear_layers(model: nn.Module, shapes: dict[str, list[Shape]]) -> Iterator[LinearLayer]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield _layer(name, module, (module.in_features,))
        elif isinstance(module, nn.MultiheadAttention):
            for part, weight in projection_readers(module).items():
                read = _matrix_reader(weight)
                yield LinearLayer(f"{name}.{part}".lstrip("."), module, read().in_shape, read)
        else:
            for shape in shapes.get(name, []):
                yield _layer(name, module, shape)


def projection_readers(attention: nn.MultiheadAttention) -> dict[str, Callable[[], Tensor]]:
    """Functions that read the query, key and value weights of torch's attention, packed or not."""
    size = attention.embed_dim
    if attention._qkv_same_embed_dim:
        return {
            name: (lambda start=start: attention.in_proj_weight[start : start + size])
            for name, start in (("query", 0), ("key", size), ("value", 2 * size))
        }
    return {
        "query": lambda: attention.q_proj_weight,
        "key": lambda: attention.k_proj_weight,
        "value": lambda: attention.v_proj_weight,
    }


def _matrix_reader(weight: Callable[[], Tensor]) -> Callable[[], LinearOperator]:
    return lambda: Dense(weight())


def _layer(name: str, module: nn.Module, in_shape: Shape) -> LinearLayer:
    return LinearLayer(name, module, in_shape, lambda: of(module, in_shape))


def _shapes(model: nn.Module, example: Example) -> dict[str, list[Shape]]:
    """The input shapes of every convolution, without batch axes, in order of first use."""
    seen: dict[str, list[Shape]] = {}

    def record(name: str, axes: int) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            shape = tuple(x.shape[x.ndim - axes :])
            if shape not in seen.setdefault(name, []):
                seen[name].append(shape)

        return hook

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        for name, module in model.named_modules():
            if isinstance(module, Convolution):
                hook = record(name, len(module.kernel_size) + 1)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if isinstance(example, Tensor):
            model(example)
        elif isinstance(example, Mapping):
            model(**example)
        else:
            model(*example)
    return seen
