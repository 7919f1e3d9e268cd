"""What surrounds private steps: types, settings of the process, and the optimizers."""

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.optim import SAM, WeightNoise
from lipkit.privacy.record_limits.own_derivatives import refuse_global_hooks

_TYPES = (torch.float32, torch.float64)


def refuse_types(model: nn.Module, loss: nn.Module) -> None:
    """Refuse types in which sums lose a record, losses that are no modules, and such that are trained themselves."""
    # Python tells nobody that a function was given; users have them at hand.
    if not isinstance(loss, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"A loss is a module, such as torch.nn.CrossEntropyLoss() or losses.TauCrossEntropy(8.0), got {loss!r}."
        )
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype not in _TYPES:
            raise UnsupportedError(
                f"{name} is {p.dtype}, in which the sum of a batch is rounded by more than one record's gradient; "
                "train in float32."
            )
    if any(p.requires_grad for p in loss.parameters()):
        raise UnsupportedError(
            f"{type(loss).__name__} has trained parameters, for which there is no rule; freeze them."
        )


def refuse_circumstances(device: torch.device) -> None:
    """Refuse settings of the process that change what a pass computes, or who draws the noise."""
    if torch.is_autocast_enabled(device.type):
        raise UnsupportedError(
            "Autocast rounds the sum of a batch by more than one record's gradient; leave its block."
        )
    # The settings of products, convolutions and recurrent layers, which torch resolves; its stubs do not know them.
    cpu: Any = torch.backends.mkldnn
    cuda: Any = torch.backends.cudnn
    parts = (
        (torch.backends.cuda.matmul, cuda.conv, cuda.rnn) if device.type == "cuda" else (cpu.matmul, cpu.conv, cpu.rnn)
    )
    rounded = {str(part.fp32_precision) for part in parts} & {"tf32", "bf16"}
    if rounded:
        raise UnsupportedError(
            f"Products of float32 are rounded to {' and '.join(sorted(rounded))}, by more than the limits allow for; "
            "call torch.set_float32_matmul_precision('highest') and set fp32_precision of all torch.backends to 'ieee'."
        )
    least = torch.tensor(torch.finfo(torch.float32).smallest_normal)
    if device.type == "cpu" and not bool(least / 2):
        raise UnsupportedError(
            "Numbers below the smallest normal one are flushed to zero, by which norms lose squares and gradients get "
            "longer than the limits allow for; call torch.set_flush_denormal(False)."
        )
    refuse_global_hooks()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        raise UnsupportedError(
            f"Private training runs in one process, and this is one of {torch.distributed.get_world_size()}: each "
            "would draw noise of its own; train in one."
        )


def refuse_optimizers(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Refuse optimizers that need more than one gradient a step, or do not move the model's parameters once each."""
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        required = closure is not None and closure.default is inspect.Parameter.empty
        if required or isinstance(optimizer, SAM | WeightNoise):
            raise UnsupportedError(
                f"{type(optimizer).__name__} evaluates a closure, which would be further releases; use an optimizer "
                "whose step needs none, such as torch.optim.SGD."
            )
    known = {id(p): name for name, p in model.named_parameters()}
    counts = Counter(id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    if foreign := counts.keys() - known.keys():
        raise ArgumentError(
            f"The optimizer has {len(foreign)} parameters that are not the model's; give it model.parameters()."
        )
    if twice := [known[at] for at, count in counts.items() if count > 1]:
        raise ArgumentError(f"{', '.join(twice)}: moved by two optimizers; give each parameter to one.")
    if left := [known[id(p)] for p in model.parameters() if p.requires_grad and id(p) not in counts]:
        raise ArgumentError(
            f"{', '.join(left)}: trained, but not by the optimizer, so noise would be spent on them for nothing; give "
            "them to it, or freeze them."
        )
