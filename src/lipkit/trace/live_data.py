"""Plain frozen data over live tensors: how to reach the tensors in it, and how to exchange them."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Self, TypeVar, final

from torch import Tensor

from lipkit.linops import LinearOperator

T = TypeVar("T")


class Live:
    """A frozen dataclass whose fields are tensors, operators, other live data, tuples of these, or plain values."""

    @final
    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors in it, in a fixed order."""
        found: list[Tensor] = []
        self.map(lambda t: (found.append(t), t)[1])
        return tuple(found)

    @final
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same data over `fn(tensor)` for each of its tensors, in the order of `tensors`."""
        changed = {f.name: _mapped(getattr(self, f.name), fn) for f in fields(self)}  # pyright: ignore[reportArgumentType]
        return replace(self, **changed)  # pyright: ignore[reportArgumentType]


def _mapped(value: object, fn: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, LinearOperator | Live):
        return value.map(fn)
    if isinstance(value, tuple):
        return tuple(_mapped(v, fn) for v in value)
    return value
