"""Plain frozen data over live tensors: how to reach the tensors in it, and how to exchange them."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Self, final

from torch import Tensor


class Live:
    """A frozen dataclass whose fields are tensors, other live data, tuples of these, or plain values.

    Operators, nodes and activations are live: they hold a model's own tensors, which can be reached and exchanged.
    """

    @final
    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors in it, in a fixed order."""
        return _tensors_in(tuple(value for _, value in self._fields()))

    @final
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same data over `fn(tensor)` for each of its tensors, in the order of `tensors`."""
        mapped = {name: _map_value(value, fn) for name, value in self._fields()}
        # Conversions that change nothing are frequent, and this is a value: the same one will do.
        if all(mapped[name] is value for name, value in self._fields()):
            return self
        return replace(self, **mapped)  # pyright: ignore[reportArgumentType]

    @final
    def _fields(self) -> tuple[tuple[str, object], ...]:
        # Every concrete class is a dataclass; see the docstring.
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))  # pyright: ignore[reportArgumentType]


def _map_value(value: object, fn: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, Live):
        return value.map(fn)
    if isinstance(value, tuple):
        found = tuple(_map_value(v, fn) for v in value)
        return value if all(new is old for new, old in zip(found, value, strict=True)) else found
    return value


def _tensors_in(value: object) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, Live):
        return value.tensors()
    if isinstance(value, tuple):
        return tuple(t for v in value for t in _tensors_in(v))
    return ()
