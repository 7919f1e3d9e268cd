"""Why a model cannot be traced on an example: found by running it, and said with what to do."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lipkit._runtime import evaluating, without_casts
from lipkit.errors import CaptureError

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]

_LETTERS = 200
# What torch.export says, and what it means.
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("not a known type",),
        "It returns an object that torch does not know to hold tensors: return a tensor, a tuple or a dict, or "
        "register its class with torch.export.register_dataclass.",
    ),
    (
        ("functorch", "fake tensor in the exported program"),
        "It takes derivatives or uses torch.func inside of forward, which torch.export does not trace: write the "
        "derivative out, or write the batch axis instead of vmap.",
    ),
    ((".numpy()",), "It leaves torch inside of forward (numpy): write that part with operations of torch."),
    (
        ("Sparse", "sparse"),
        "It computes with a sparse tensor in a way that torch.export cannot trace: register it as a buffer and "
        "multiply by it from the left, W @ x.T, or convert it with to_dense().",
    ),
    (("quantized",), "It holds a quantised tensor: dequantise it once, outside of forward."),
    (("NestedTensor",), "It holds a nested tensor: keep its parts as tensors of one shape each, or pad them."),
)
_BRANCHES = (
    "Branches on values, .item() and data-dependent shapes have no graph: replace them (torch.where, a fixed shape), "
    "or trace the part of the model before or after them."
)


def explain_failure(model: nn.Module, args: Args, kwargs: Kwargs, error: Exception) -> CaptureError:
    """The refusal of a model that torch.export cannot trace on these arguments: the cause, and what to do.

    What the model itself says comes first: where it does not run on the example, the export is not to blame.
    """
    told = _of_arguments(model, args, kwargs)
    raised = run_error(model, args, kwargs)
    if told is None and raised is not None:
        told = _of_run(model, args, kwargs, raised)
    name = type(model).__name__
    if told is not None:
        return CaptureError(f"{name} cannot be traced on one sample of shape {_shapes(args, kwargs)}: {told}")
    text = first_line(error)
    cause = next((said for signs, said in _CAUSES if any(sign in text for sign in signs)), _BRANCHES)
    return CaptureError(f"torch.export cannot trace {name} on inputs of shape {_shapes(args, kwargs)}: {text} {cause}")


def run_error(model: nn.Module, args: Args, kwargs: Kwargs) -> Exception | None:
    """The error that the model raises on copies of these arguments in evaluation mode; None if it runs.

    Buffers that it changes on the way are put back.
    """
    copies, named = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    try:
        with warnings.catch_warnings(), without_casts(), evaluating(model), _same_buffers(model):
            warnings.simplefilter("ignore")
            model(*copies, **named)
    except Exception as error:  # noqa: BLE001 - whatever a model raises is the answer
        return error
    return None


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Put back the buffers of a model that changes or replaces them while it runs."""
    kept = [(module, dict(module._buffers)) for module in model.modules()]
    # Nothing writes into a sparse tensor.
    plain = [b for _, buffers in kept for b in buffers.values() if b is not None and b.layout is torch.strided]
    copies = [buffer.clone() for buffer in plain]
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, copy in zip(plain, copies, strict=True):
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


def batch_axis_missing(model: nn.Module, args: Args, kwargs: Kwargs) -> str | None:
    """A sentence for a model that runs once every tensor has one or two more axes in front; None otherwise."""
    for code, at in (("x[None]", (None,)), ("x[None, None]", (None, None))):
        more, named = pytree.tree_map(
            lambda leaf, at=at: leaf[at] if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        if run_error(model, more, named) is None:
            return (
                f"the example has no batch axis or no channels. Its shape is {_shapes(args, kwargs)}, and the model "
                f"runs on {_shapes(more, named)}: give {code}{_shape_option(more, named)}."
            )
    return None


def _shape_option(args: Args, kwargs: Kwargs) -> str:
    """How the command line says the shape of one tensor, which it takes without the batch axis."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if len(tensors) != 1 or tensors[0].ndim < 2 or tensors[0].shape[0] != 1:
        return ""
    return f" (--shape {','.join(map(str, tensors[0].shape[1:]))} on the command line)"


def needs_a_batch(error: Exception) -> bool:
    """Whether a model raised this because one sample has no statistics of a batch."""
    return "more than 1 value per channel" in str(error)


def _of_arguments(model: nn.Module, args: Args, kwargs: Kwargs) -> str | None:
    """A sentence about a wrong number or wrong names of the arguments."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ""
        if len(args) > 1 and _binds(signature, args[:1]):
            hint = " The first one alone would fit: give the inputs without the labels."
        return (
            f"forward{signature} takes other arguments: {error}. Give a tuple of all arguments, or a mapping of them "
            f"by name.{hint}"
        )
    return None


def _binds(signature: inspect.Signature, args: Args) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def _of_run(model: nn.Module, args: Args, kwargs: Kwargs, error: Exception) -> str:
    """Why the model raises this on arguments that have the right number."""
    said = f"the model itself raises on it: {first_line(error)}"
    if needs_a_batch(error):
        return (
            f"{said} It normalises by the statistics of the batch, which one sample does not have: track running "
            "statistics, and evaluate with them."
        )
    if "sparse" in str(error):
        return f"{said} Multiply by a sparse weight from the left, (W @ x.T).T, or convert it with to_dense()."
    missing = batch_axis_missing(model, args, kwargs)
    if missing is not None:
        return missing
    weights = [*model.parameters(), *model.buffers()]
    inputs = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
    for what, read in _PROPERTIES:
        theirs, ours = ({read(t) for t in tensors} - {None} for tensors in (weights, inputs))
        if len(theirs) == 1 and ours and ours != theirs:
            given, wanted = ", ".join(sorted(map(str, ours))), theirs.pop()
            return f"{said} The example has the {what} {given}, the weights {wanted}: give x.to({_code(wanted)})."
    table = next(
        (name_module(p, m) for p, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)), None
    )
    if table is not None and all(t.is_floating_point() for t in inputs):
        return (
            f"{said} Its module {table} takes token ids: give integers, and name that module with wrt=, so that "
            "its result is the input."
        )
    return f"{said} Give an example on which model(x) runs, with samples along axis 0."


def _device(tensor: Tensor) -> str | None:
    return str(tensor.device)


def _type(tensor: Tensor) -> str | None:
    return str(tensor.dtype) if tensor.is_floating_point() else None


_PROPERTIES: tuple[tuple[str, Callable[[Tensor], str | None]], ...] = (("device", _device), ("type", _type))


def _code(value: str | None) -> str:
    """A type or a device as one writes it in a call."""
    return str(value) if str(value).startswith("torch.") else repr(value)


def name_module(path: str, module: nn.Module) -> str:
    """A module by its path and its class."""
    return f"{path!r} ({type(module).__name__})" if path else type(module).__name__


def _shapes(args: Args, kwargs: Kwargs) -> str:
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return ", ".join(str(tuple(t.shape)) for t in leaves if isinstance(t, Tensor)) or "()"


def first_line(error: Exception) -> str:
    """The first line of what an error says, as a sentence; of a long one as many sentences as fit into 200 letters."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    while len(text) > _LETTERS and ". " in text:
        text = text.rpartition(". ")[0]
    return text if text.endswith(".") else f"{text}."
