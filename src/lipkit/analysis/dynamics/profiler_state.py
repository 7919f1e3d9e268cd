"""Reads the stored state of a profiler, and refuses one of another profiler by name."""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from lipkit.errors import ArgumentError


@final
class StoredState:
    """A flat mapping of names to tensors and sentences."""

    def __init__(self, values: Mapping[str, Tensor | str]) -> None:
        self._values = values

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name; refuses what is missing."""
        value = self._values.get(name)
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"The state of a profiler has no tensor {name!r}; give the whole of what state_dict() returned."
            )
        return value

    def number(self, name: str) -> int:
        """The whole number of a name."""
        return int(self.tensor(name))

    def sentence(self, name: str) -> str | None:
        """The sentence of a name, None if there is none."""
        value = self._values.get(name)
        return value if isinstance(value, str) else None

    def part(self, prefix: str, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names, each with `prefix` before it; refuses what is missing."""
        return {name: self.tensor(prefix + name) for name in names}

    def check(self, name: str, expected: int) -> None:
        """Refuse a state with another number there."""
        found = self.number(name)
        if found != expected:
            raise ArgumentError(
                f"The state is of a profiler with {name}={found}, and this one has {name}={expected}; "
                "build it as the first one was."
            )

    def check_names(self, expected: Sequence[str]) -> None:
        """Refuse a state of other layers."""
        found = [self.sentence(f"layers.{i}.name") for i in range(len(expected) + 1)]
        if found != [*expected, None]:
            raise ArgumentError(
                f"The state is of layers {[name for name in found if name is not None]}, and this profiler has "
                f"{list(expected)}; give it the model of the first run."
            )
