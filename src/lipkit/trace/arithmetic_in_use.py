"""The arithmetic a model is written in, whatever autocast is on around us; and the one that was really used."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# What changes the type of numbers in a graph of `torch_export.canonical`.
_CONVERSIONS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default})


@contextmanager
def without_casts() -> Iterator[None]:
    """No automatic casts to half precision: weights that are computed from others are those of the model's dtype."""
    on_gpu = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext()
    with torch.autocast("cpu", enabled=False), on_gpu:
        yield


@final
class Watching(TorchDispatchMode):
    """Notes the narrowest floating-point type of any result computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.narrowest = torch.float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor) and value.is_floating_point():
                self.narrowest = max(self.narrowest, value.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        return found


def converts(node: Node) -> bool:
    """Whether a node only changes the type of floating-point numbers."""
    if node.target not in _CONVERSIONS:
        return False
    source, target = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    return all(isinstance(end, Tensor) and end.dtype.is_floating_point for end in (source, target))
