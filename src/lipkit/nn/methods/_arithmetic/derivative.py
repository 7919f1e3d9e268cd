"""Functions with a derivative of their own, for every way in which torch can run them."""

import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from lipkit._compilers import is_compiling, needs_plain_operations

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


def with_derivative(
    forward: Callable[..., Tensors],
    backward: Callable[[Any, Tensors, Any], Gradients],
    jvp: Callable[[Any, Tensors, Tensors], Gradients] | None = None,
    *,
    tensors: int = 1,
    constants: int = 0,
    every: bool = False,
) -> Callable[..., Any]:
    """A function that returns the first output of `forward`, or every one, with the derivatives given.

    Derivatives are written in plain operations of inputs and outputs, so that further derivatives are theirs. Where
    torch cannot use them, `forward` itself is differentiated; without a `jvp` there is no forward mode, and `backward`
    is used everywhere.

    Args:
        forward: (*inputs) -> the result, then whatever derivatives read; derivatives of derivatives go through it.
        backward: (inputs, outputs, gradients) -> a gradient for each tensor among the inputs. The gradient of an output
            that nothing depends on is None, where there are several outputs.
        jvp: (inputs, outputs, tangents) -> a tangent for each output, None for constants.
        tensors: how many of the inputs are tensors; they come first.
        constants: how many of the outputs, the last ones, are constants for further derivatives.
        every: whether all outputs are returned, instead of the first.
    """
    # torch asks for the signature at every call, and finding it out takes 13 us.
    forward.__dict__["__signature__"] = inspect.signature(forward)

    def chosen(outputs: Tensors) -> Any:
        return outputs if every else outputs[0]

    def use(function: Any, *inputs: Any) -> Any:
        # Compilers call `forward` with an argument too many where nothing is differentiated.
        if is_compiling() and not (torch.is_grad_enabled() and any(one.requires_grad for one in inputs[:tensors])):
            return chosen(forward(*inputs))
        return chosen(function.apply(*inputs))

    # Compilers refuse functions with a derivative for forward mode.
    class Backward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
            ctx.numbers = inputs[tensors:]
            if constants:
                ctx.mark_non_differentiable(*output[-constants:])
            # Zeros in place of absent gradients would be as large as all outputs together.
            ctx.set_materialize_grads(len(output) == 1)
            ctx.save_for_backward(*inputs[:tensors], *output)
            ctx.save_for_forward(*inputs[:tensors], *output)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
            saved = ctx.saved_tensors
            found = backward((*saved[:tensors], *ctx.numbers), saved[tensors:], gradients)
            return *found, *(None for _ in ctx.numbers)

    Backward.forward = staticmethod(forward)  # pyright: ignore[reportAttributeAccessIssue]

    if jvp is None:
        return lambda *inputs: use(Backward, *inputs)

    @final
    class BothModes(Backward):
        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Gradients:
            saved = ctx.saved_tensors
            return jvp((*saved[:tensors], *ctx.numbers), saved[tensors:], tangents[:tensors])

    def function(*inputs: Any) -> Any:
        if needs_plain_operations():
            return chosen(forward(*inputs))
        return use(Backward if is_compiling() else BothModes, *inputs)

    return function
