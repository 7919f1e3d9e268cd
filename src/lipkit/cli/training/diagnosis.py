"""Search for the first value of a training step that is NaN or infinite."""

from typing import Any

import torch
from torch import Tensor, nn


def first_not_finite(model: nn.Module, inputs: Tensor) -> str:
    """The first thing that is not finite: a parameter, the inputs, or the output of a module, by its name."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"the parameter {name}"
    if not bool(torch.isfinite(inputs).all()):
        return "the inputs"
    found: list[str] = []

    def hook_for(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(hook_for(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return f"the output of {found[0]}" if found else "the loss itself, every module's output being finite"
