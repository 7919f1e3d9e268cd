"""Checks of what is given as a model and as an example, before anything is traced."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from lipkit.errors import ArgumentError, CaptureError
from lipkit.trace.export_failures import batch_axis_missing, name_module, needs_a_batch, run_error
from lipkit.trace.model_signature import first_samples


def require_model(model: object) -> None:
    """Refuse what is neither a module nor an exported program."""
    if isinstance(model, nn.Module | ExportedProgram):
        return
    match model:
        case type():
            hint = f"give an instance of it, {model.__name__}(...)"
        case Mapping():
            hint = "weights alone have no forward: load them into the model, model.load_state_dict(weights)"
        case list() | tuple():
            hint = "put the parts into nn.Sequential(*parts)"
        case str():
            hint = "load the model from its file first"
        case _ if callable(model):
            hint = "call it in the forward of a module"
        case _:
            hint = "give the torch.nn.Module"
    raise ArgumentError(f"The model must be a torch.nn.Module or an exported program, got {_kind(model)}; {hint}.")


def split_example(example: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs): a tensor is the first argument, a sequence all of them, a mapping those by name."""
    match example:
        case None:
            return (), {}
        case Mapping():
            return (), dict(example)
        case Tensor():
            return (example,), {}
        case tuple() | list():
            return tuple(example), {}
        case np.ndarray():
            hint = "torch.from_numpy(x)"
        case DataLoader():
            hint = "the inputs of one of its batches, next(iter(loader))[0]"
        case _:
            hint = "e.g. torch.zeros(1, 3, 32, 32)"
    raise ArgumentError(
        f"The example must be a tensor with a batch axis, a tuple of arguments or a mapping of them, got "
        f"{_kind(example)}; give {hint}."
    )


def one_sample(model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """(args, kwargs) with one sample, as `first_samples` cuts them; refuses tensors without plain entries."""
    for leaf in pytree.tree_leaves((args, dict(kwargs))):
        _require_plain(leaf)
    if isinstance(model, nn.Module):
        require_traceable(model)
    return first_samples(args, kwargs)


def require_traceable(model: nn.Module) -> None:
    """Refuse a model that has no network whatever the example is, and say why."""
    told = _of_model(model)
    if told is not None:
        raise CaptureError(f"{type(model).__name__} cannot be traced: {told}")


def _of_model(model: nn.Module) -> str | None:
    """The reason why the model itself is refused, whatever the example; None if it is not."""
    if isinstance(model, torch.jit.ScriptModule):
        return (
            "it was compiled by TorchScript, whose modules torch.export does not read. Give the nn.Module that it was "
            "made from."
        )
    if getattr(model.forward, "__func__", None) is nn.Module.forward:
        return "it has no forward. Put its parts into nn.Sequential, or write a forward that calls them."
    quantised = next(_quantised(model), None)
    if quantised is not None:
        return (
            f"its module {quantised} quantises, or prepares for it. Rounding to a grid jumps, so a quantised model has "
            "no Lipschitz constant: bound the model in floating point, as it was before torch.ao.quantization prepared "
            "or converted it; or put its dequantised weights, module.weight().dequantize(), into a plain layer."
        )
    for path, module in model.named_modules():
        own = {**module._parameters, **module._buffers}
        if any(is_lazy(tensor) for tensor in own.values() if tensor is not None):
            name = name_module(path, module)
            return f"its module {name} has no weights yet. Run the model once, model(x), then ask again."
        if any(tensor.is_meta for tensor in own.values() if tensor is not None):
            name = name_module(path, module)
            return (
                f"the weights of its module {name} are on the meta device and have no values. Give it memory with "
                "model.to_empty(device='cpu'), and load its weights."
            )
    return None


def _quantised(model: nn.Module) -> Iterator[str]:
    """The modules of torch.ao that quantise, or watch values in order to."""
    for path, module in model.named_modules():
        home = type(module).__module__
        # Reference modules compute in floating point, and stubs do nothing.
        if not home.startswith("torch.ao.") or ".reference" in home:
            continue
        if ".quantized" in home or home.endswith((".observer", ".fake_quantize")) or ".qat" in home:
            yield name_module(path, module)


@contextmanager
def explaining_axis_zero(model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Say of a model that is refused here on the first sample of these arguments if their axis 0 is none of samples.

    That is so if it takes all of them, or all with one more axis, but not the first entry. Cost: nothing without a
    refusal, three evaluations with one.
    """
    try:
        yield
    except CaptureError as error:
        told = _of_axis_zero(model, args, kwargs)
        if told is None:
            raise
        raise CaptureError(told) from error


def _of_axis_zero(model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    cut = first_samples(args, kwargs)
    tensors = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor) and leaf.ndim]
    if not isinstance(model, nn.Module) or tensors[0].shape[0] == 1:
        return None
    # To run a model with lazy weights would make them.
    require_traceable(model)
    error = run_error(model, *cut)
    if error is None or needs_a_batch(error):
        return None
    missing = batch_axis_missing(model, args, kwargs)
    if missing is not None:
        return f"Axis 0 of an example is the batch, but {missing}"
    if run_error(model, args, kwargs) is None:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tensors)
        return (
            f"The model runs on the example of shape {shapes}, but not on its first entry along axis 0, which must be "
            "an axis of samples. If the whole is one sample (the nodes of a graph, an unbatched sequence), write a "
            "model that takes it with a batch axis of 1 in front, and removes that axis."
        )
    return None


def _require_plain(leaf: object) -> None:
    """Refuse arguments whose entries cannot be read or moved one by one."""
    if isinstance(leaf, np.ndarray):
        raise ArgumentError(f"The example holds a numpy array of shape {leaf.shape}; give torch.from_numpy(x).")
    if not isinstance(leaf, Tensor):
        return
    if leaf.is_nested:
        raise ArgumentError("The example is a nested tensor; give one sample with a batch axis of 1, x[0][None].")
    if leaf.layout is not torch.strided:
        raise ArgumentError(f"The example has the layout {leaf.layout}; give a dense tensor, x.to_dense().")
    if leaf.is_quantized:
        raise ArgumentError(f"The example is quantised ({leaf.dtype}); give floating-point numbers, x.dequantize().")
    if leaf.is_meta:
        raise ArgumentError("The example is on the meta device and has no entries; give one on a device, e.g. the cpu.")
    if leaf.ndim and leaf.shape[0] and not leaf.numel():
        raise ArgumentError(f"The example of shape {tuple(leaf.shape)} has no entries; give one with at least one.")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of {type(value).__name__}"
