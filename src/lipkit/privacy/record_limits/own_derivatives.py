"""Whether a backward pass computes the derivative of what the forward pass computes."""

import copy

import torch
from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.record_limits.public_records import public_records

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
# Steps of the differences, relative to the tensor and, where it is small, to 1: the first for smooth models in float64,
# the others where a model rounds to float32 inside or is steep.
_STEPS = (2.0**-20, 2.0**-12, 2.0**-7)
# How far tensors are moved before, so that ties and kinks of a start at zero do not matter.
_OFF_KINKS = 2.0**-10
# How much longer a gradient may be than the difference shows. No defect is that small; a kink in a difference may be.
_LONGER = 2.0**-6
_RECORDS = 4


def refuse_hooks(model: nn.Module) -> None:
    """Refuse modules and parameters with hooks: they change passes, and no bound can read them."""
    for name, part in model.named_modules():
        if any(vars(part).get(kind) for kind in _HOOKS):
            raise UnsupportedError(
                f"{type(part).__name__}{f' at {name}' if name else ''} has a hook, which may change values or "
                "gradients by more than any limit knows; remove it, or write it as a module."
            )


def refuse_global_hooks() -> None:
    """Refuse hooks on all modules of the process, as a profiler registers them."""
    if any(vars(nn.modules.module).get(kind) for kind in _GLOBAL_HOOKS):
        raise UnsupportedError(
            "Hooks on all modules are registered, which read private records or may change gradients; remove them, and "
            "do not profile a private training."
        )


def refuse_foreign_derivatives(plain: nn.Module, inputs: Inputs, like: Tensor) -> None:
    """Refuse a model whose backward pass goes through functions with a derivative that somebody wrote.

    The network knows only what such a function computes forward. Those of lipkit have tests of their own; a written
    derivative of anybody else would have to be believed. Cost: one pass of one record.
    """
    with torch.enable_grad():
        outputs = plain(public_records(inputs, 1, like))
    stack, seen = [outputs.grad_fn], set[object]()
    while stack:
        step = stack.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        stack += [after for after, _ in step.next_functions]
        kind = type(step)
        # torch makes a class for the backward pass of each Function in Python; those in C++ share one.
        written = vars(kind).get("_forward_cls")
        if kind.__name__ == "CppFunction" or (written is not None and not written.__module__.startswith("lipkit.")):
            raise UnsupportedError(
                f"The model uses {step.name()}, a function with a derivative of its own, which need not be the "
                "derivative of what it computes; write it in operations of torch, without torch.autograd.Function."
            )


def refuse_longer_gradients(plain: nn.Module, inputs: Inputs) -> None:
    """Refuse a model with a gradient that is longer than its values change: |g| <= d f(w + t g/|g|) / dt at t = 0.

    Limits are those of derivatives of what is computed. `detach`, hooks on tensors and functions with a wrong backward
    pass give other gradients, which may be longer. For each trained tensor w and a random combination of the outputs of
    four public records the difference along the gradient g is compared with |g|. Shorter gradients harm nobody.

    Guarantee: none beyond these records; this finds mistakes. Cost: two passes of four records a tensor, in float64.
    """
    try:
        longer = _longer(plain, inputs, torch.float64)
    except RuntimeError:
        # A model that holds tensors of its own type where no conversion finds them.
        longer = _longer(plain, inputs, next(p.dtype for p in plain.parameters() if p.requires_grad))
    for name, (length, change) in longer.items():
        raise UnsupportedError(
            f"The gradient of {name} has the length {length:.6g} by the model's backward pass, where its values change "
            f"by {change:.6g}: something (detach, a hook on a tensor, a written derivative) makes it longer than any "
            "limit knows; remove it."
        )


@torch.no_grad()
def _longer(plain: nn.Module, inputs: Inputs, dtype: torch.dtype) -> dict[str, tuple[float, float]]:
    """The first tensor with such a gradient: its length, and how fast values change along it."""
    model = copy.deepcopy(plain).to(dtype)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    x = public_records(inputs, _RECORDS, next(iter(trained.values())))
    generator = torch.Generator().manual_seed(1)
    for p in trained.values():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
        p += _OFF_KINKS * noise * (float(p.square().mean().sqrt()) or 1.0)
    with torch.enable_grad():
        outputs = model(x)
        ends = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
        gradients = torch.autograd.grad(outputs, list(trained.values()), ends, materialize_grads=True)
    # Rounding of the values: some tens of operations, one after the other.
    noise = 2**5 * torch.finfo(dtype).eps * float((outputs * ends).abs().sum())
    for (name, p), gradient in zip(trained.items(), gradients, strict=True):
        length = float(torch.linalg.vector_norm(gradient))
        # A gradient that is not a number counts as zero in a step.
        size = float(torch.linalg.vector_norm(p))
        # A step of 1 would take small tensors across kinks that are far from them in their own units.
        steps = [step * unit for unit in sorted({size, max(1.0, size)}) for step in _STEPS] if length > 0 else []
        changes: list[float] = []
        for step in steps:
            if noise > _LONGER * step * length:
                continue
            at, values = p.clone(), list[float]()
            for sign in (1.0, -1.0):
                p.copy_(at + sign * step / length * gradient)
                values.append(float((model(x) * ends).double().sum()))
            p.copy_(at)
            changes.append((values[0] - values[1]) / (2 * step))
            if length * (1 - _LONGER) <= changes[-1] + noise / step:
                break
        else:
            if changes:
                return {name: (length, max(changes))}
    return {}
