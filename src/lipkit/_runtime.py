"""How the code runs at this moment: by Python, a compiler, an export or a transform; in which mode; by which draws."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import TransformType, get_interpreter_stack, is_functorch_wrapped_tensor
from torch.autograd import forward_ad


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; the mode of every submodule is put back, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def without_casts() -> Iterator[None]:
    """No automatic casts to half precision: weights that are computed from others are those of the model's dtype."""
    on_gpu = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext()
    with torch.autocast("cpu", enabled=False), on_gpu:
        yield


_F = TypeVar("_F", bound=Callable[..., object])
_READING: ContextVar[bool] = ContextVar("_READING", default=False)


def constant_for_compilers(function: _F) -> _F:
    """Mark a function that compilers cannot read: they call it once and take the answer as a constant.

    This is all that torch.compiler.assume_constant_result does, but that loads torch's compiler, a second at every
    start.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@contextmanager
def reading() -> Iterator[None]:
    """Within this block `lipkit.trace` exports models in order to read them, not to compile them."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


# Compilers are never at work in such a block.
@constant_for_compilers
def is_reading() -> bool:
    """Whether `lipkit.trace` reads the model: what it reads is executed as torch does without a compiler."""
    return _READING.get()


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


# Everyone who takes notes of draws, and what is left of draws that are repeated.
_notes: ContextVar[tuple[list[int], ...]] = ContextVar("notes", default=())
_repeated: ContextVar[Iterator[int] | None] = ContextVar("repeated", default=None)


def draw() -> int:
    """128 bits that nobody could know before: the start of a proof by chance. Inside `replaying`, recorded ones."""
    repeated = _repeated.get()
    found = secrets.randbits(128) if repeated is None else next(repeated, None)
    # A replay that asks for more than was recorded is none; its number will not be the recorded one.
    found = secrets.randbits(128) if found is None else found
    for note in _notes.get():
        note.append(found)
    return found


@contextmanager
def recording() -> Iterator[list[int]]:
    """A list of everything that is drawn inside, in order. Recordings may lie inside of each other."""
    note: list[int] = []
    token = _notes.set((*_notes.get(), note))
    try:
        yield note
    finally:
        _notes.reset(token)


@contextmanager
def replaying(draws: Sequence[int]) -> Iterator[None]:
    """Repeat recorded draws in order. What comes out proves nothing: the record can be chosen after the fact."""
    token = _repeated.set(iter(draws))
    try:
        yield
    finally:
        _repeated.reset(token)
