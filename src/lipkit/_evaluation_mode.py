"""How a model is run to be measured: in evaluation mode, and in the arithmetic that it is written in."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


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
