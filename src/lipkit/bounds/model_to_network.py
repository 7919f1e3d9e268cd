"""From a model and an example to its network: the one way that bounds, certificates and logits all take."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lipkit._evaluation_mode import evaluating, without_casts
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.freeze import frozen
from lipkit.trace import Network
from lipkit.trace.capture import capture
from lipkit.trace.model_signature import first_samples

Program = nn.Module | ExportedProgram
Model = Program | Network
Example = Tensor | tuple[Any, ...] | Mapping[str, Any] | None
Call = tuple[tuple[Any, ...], dict[str, Any]]


def network_of(
    model: Model, example: Example = None, wrt: str | tuple[str, ...] | None = None, output: str | int | None = None
) -> Network:
    """The network of a model; a `Network` is returned as it is.

    Under `torch.no_grad()` computed weights are held as in `lipkit.nn.frozen`, so that what computes them is not
    traced at all: for networks of many constrained layers that is nearly all there is to trace.

    Args:
        model: a module, an exported program or a network.
        example: a tensor, a tuple of arguments, or a mapping of them by name, each with a batch axis of which the
            first sample is used; an exported program has one of its own.
        wrt: what the network is a function of, as in `capture`.
        output: which of several results it computes, as in `capture`.

    Guarantee: the same network with and without gradients. Cost: that of `capture`; without gradients one evaluation
    of one sample besides.
    """
    return model if isinstance(model, Network) else capture_call(model, call_of(model, example), wrt, output)


def call_of(model: Program, example: Example) -> Call:
    """The arguments for one sample: a tensor is the first argument, a tuple all of them, a mapping those by name.

    An exported program has an example of its own, which is used if none is given.
    """
    if isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    else:
        args, kwargs = (example,) if isinstance(example, Tensor) else tuple(example or ()), {}
    if isinstance(model, ExportedProgram) and not args and not kwargs:
        if model.example_inputs is None:
            # Nothing to cut: `capture` refuses it, and says what to give.
            return (), {}
        args, kwargs = model.example_inputs
    return first_samples(args, kwargs)


def capture_call(
    model: Program, call: Call, wrt: str | tuple[str, ...] | None = None, output: str | int | None = None
) -> Network:
    """`capture` of a model on one sample, with its computed weights held where nobody can ask for gradients."""
    args, kwargs = call
    if not isinstance(model, ExportedProgram) and not torch.is_grad_enabled() and _computes_weights(model):
        with frozen(model):
            if _holds_weights(model, call):
                return capture(model, *args, wrt=wrt, output=output, **kwargs)
    return capture(model, *args, wrt=wrt, output=output, **kwargs)


def _computes_weights(model: nn.Module) -> bool:
    return any(isinstance(part, Computed) for part in model.modules())


def _holds_weights(model: nn.Module, call: Call) -> bool:
    """Run a frozen model once, so that it holds its weights; False for a model that cannot be run.

    A run, because it also shows which weights are computed from several sets of parameters: tracing does not.
    """
    args, kwargs = pytree.tree_map(_copied, call)
    try:
        with without_casts(), evaluating(model):
            model(*args, **kwargs)
    except Exception:  # noqa: BLE001 - whatever a model raises: it is captured without held weights, which names it
        return False
    return True


def _copied(leaf: object) -> object:
    """A copy of a tensor: a model may work in place."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
