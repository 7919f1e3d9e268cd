"""Which layers of a model a profiler follows, and which it does not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.analysis.dynamics.tracked_layers import Reading, TrackedLayer
from lipkit.errors import ArgumentError, LipkitError
from lipkit.regularizers.linear_layers import Example, layers_of

# A sentence lists at most so many names.
_NAMES = 4


def find_layers(model: nn.Module, example: Example, reading: Reading) -> tuple[TrackedLayer, ...]:
    """The layers of `layers_of`, read this way; says in one sentence why there are none."""
    try:
        with evaluating(model):
            return reading.track(layers_of(model, example))
    except ArgumentError as error:
        what = "linear layers, convolutions and attention projections"
        raise ArgumentError(f"A profiler follows the norms of {what}: {error}") from error
    except LipkitError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"The model cannot be run on the example, {_describe(example)} ({type(error).__name__}: "
            f"{next(iter(str(error).splitlines()), '')}); give what the model is called with: a tensor with a batch "
            "axis, a tuple of positional arguments without labels, or a mapping of named ones."
        ) from error


def as_call(example: Example) -> Tensor | tuple[Any, ...] | Mapping[str, Any]:
    """An example as `lipkit.capture` takes it."""
    return example if isinstance(example, Tensor | Mapping) else tuple(example)


def _describe(example: object) -> str:
    if isinstance(example, Tensor):
        return f"a tensor of shape {tuple(example.shape)}"
    if isinstance(example, Mapping):
        return f"a mapping of {join_names([repr(key) for key in example]) or 'nothing'}"
    if isinstance(example, list | tuple):
        return f"a {type(example).__name__} of {join_names([_describe(one) for one in example]) or 'nothing'}"
    return f"an object of type {type(example).__name__}"


def why_untracked(model: nn.Module, layers: Sequence[TrackedLayer]) -> str | None:
    """None, or which matrices of the model belong to no tracked layer: those of recurrent layers and embeddings do."""
    tracked = {id(parameter) for layer in layers for parameter in layer.module.parameters()}
    # A parameter with at most one axis of more than one entry scales or moves, so it is no matrix.
    names = [
        name
        for name, parameter in model.named_parameters()
        if id(parameter) not in tracked and sum(size > 1 for size in parameter.shape) > 1
    ]
    if not names:
        return None
    return (
        f"Not followed, and counted as 1: {join_names(names)}. Only linear layers, convolutions and attention "
        "projections are; lipkit.lipschitz bounds a model with all of its weights."
    )


def why_unmoved(layers: Sequence[TrackedLayer]) -> str | None:
    """None, or which layers have a weight that the next forward pass computes, so that no step is seen to move it."""
    names = [layer.name for layer in layers if isinstance(vars(layer.module).get("weight"), Tensor)]
    if not names:
        return None
    return (
        f"The weight of {join_names(names)} is computed by a hook before each forward pass, so that steps do not move "
        "it: its changes are booked as rest. Use torch.nn.utils.parametrizations."
    )


def join_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(names[:_NAMES])}{more}"


def shared_weights(model: nn.Module) -> set[int]:
    """The parameters that have several names."""
    names = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return {key for key, count in names.items() if count > 1}
