"""How many operations torch starts."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Counts the operations that compute something: all but views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        memory = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        self.count += not (isinstance(found, Tensor) and found.untyped_storage().data_ptr() in memory)
        return found
