"""Which transforms of torch are at work: not all of them can differentiate a function with a derivative of its own."""

import torch
from torch._C._functorch import TransformType, get_interpreter_stack


def plainly() -> bool:
    """Whether a function has to be written in plain operations here, without a derivative of its own.

    Forward mode inside of forward mode loses the outer derivative at such functions, without a word; compilers lose
    their rule for vmap; traces of torch.jit cannot be saved with them.
    """
    return torch._C._get_tracing_state() is not None or _in_the_way(torch.compiler.is_compiling())


def _in_the_way(compiling: bool) -> bool:
    stack = get_interpreter_stack() or []
    return bool(stack) if compiling else sum(one.key() == TransformType.Jvp for one in stack) > 1


# Compilers cannot read the stack of transforms, but compile again where it is another one. The mark is explained in
# lipkit.nn.core.precision.
_in_the_way.__dict__["_dynamo_marked_constant"] = True
