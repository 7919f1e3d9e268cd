"""Who executes the code at this moment: Python, a compiler, an export or a transform."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_functorch_wrapped_tensor
from torch.autograd import forward_ad

_F = TypeVar("_F", bound=Callable[..., object])


def constant_for_compilers(function: _F) -> _F:
    """Mark a function that compilers cannot read: they call it once and take the answer as a constant.

    This is all that torch.compiler.assume_constant_result does, but that loads torch's compiler, a second at every
    start.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


def is_compiling() -> bool:
    """Whether the code is written down instead of executed: by `torch.compile`, or by any export."""
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Whether a model is written down for readers: True within `torch.export`, unless it is strict.

    torch 2.11 says of every model that dynamo reads that it is exported: by compilers, and by strict exports too.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def needs_plain_operations() -> bool:
    """Whether a function must be written in plain operations here, without a derivative of its own.

    Forward mode inside of forward mode loses the outer derivative at such functions, without a word; compilers lose
    their rule for vmap; traces of torch.jit cannot be saved with them.
    """
    return torch._C._get_tracing_state() is not None or _transforms_interfere(is_compiling())


def is_transforming() -> bool:
    """Whether a transform of `torch.func` runs the code: its tensors are stand-ins, whose bits nobody can read."""
    return bool(get_interpreter_stack())


def is_transformed(tensor: Tensor) -> bool:
    """Whether a transform of `torch.func` differentiates or batches this tensor."""
    return is_functorch_wrapped_tensor(tensor)


def runs_plainly() -> bool:
    """Whether each operation is executed at once and for itself: nobody compiles, exports, traces or transforms it.

    Modes of torch that see or replace operations, and forward derivatives, count as transforms.
    """
    watched = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    recorded = is_compiling() or torch._C._get_tracing_state() is not None
    return not (recorded or watched or is_transforming() or forward_ad._current_level >= 0)


# Compilers compile again where the stack of transforms is another one.
@constant_for_compilers
def _transforms_interfere(compiling: bool) -> bool:
    stack = get_interpreter_stack() or []
    return bool(stack) if compiling else sum(one.key() == TransformType.Jvp for one in stack) > 1
