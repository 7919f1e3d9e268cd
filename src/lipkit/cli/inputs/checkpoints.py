"""The weights of a model inside the file of a training: nested, or with the names of a wrapper in front."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from lipkit.errors import ArgumentError

# Dictionaries inside dictionaries: {"model": {"state_dict": ...}} and one more.
_DEEPEST = 4


@final
@dataclass(frozen=True, eq=False)
class FoundState:
    """Tensors that fit a model by their names, and where they were: below which keys, behind which prefix."""

    tensors: dict[str, Tensor]
    keys: tuple[str, ...]
    prefix: str
    rest: int
    not_needed: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"under {' / '.join(self.keys)}" if self.keys else "at the top"
        front = f", whose names begin with {self.prefix!r}" if self.prefix else ""
        left = f"; {self.rest} other tensors there are left out" if self.rest else ""
        without = f", without {_list_some(list(self.not_needed))}, which only training reads" if self.not_needed else ""
        return f"{place}{front}{without}{left}"


def find_state(content: object, wanted: Mapping[str, Tensor], path: Path) -> FoundState:
    """The state dictionary in what a file holds that has all names of a model.

    It may lie inside other dictionaries, and have a prefix that a wrapper put there ("module." of DataParallel,
    "model." of Lightning, "_orig_mod." of torch.compile). Behind the prefix all names must be the model's; tensors
    without it belong to other modules and are left out. The counters of batches of normalisations may be missing.
    If several fit, or none does, an error lists the keys.
    """
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{path} holds a {type(content).__name__}, expected the state_dict() of a model.")
    states = list(_states(content, ()))
    if not states:
        raise ArgumentError(
            f"{path} holds no state_dict() of a model, but a dictionary with the keys {_list_some(list(content))}."
        )
    fitting = [found for keys, state in states for found in _fit(keys, state, wanted)]
    if len(fitting) > 1:
        places = "; ".join(str(one) for one in fitting)
        raise ArgumentError(f"{path} holds weights for this model more than once: {places}. Save the ones you mean.")
    if fitting:
        return fitting[0]
    # The one with the most names in common says best what is wrong.
    keys, state = max(states, key=lambda one: len(set(one[1]) & set(wanted)))
    missing = [key for key in wanted if key not in state and not _only_training_reads(key)]
    unexpected = [key for key in state if key not in wanted]
    where = f" (under {' / '.join(keys)})" if keys else ""
    wrong = [f"it lacks {_list_some(missing)}"] if missing else []
    wrong += [f"the model has no {_list_some(unexpected)}"] if unexpected else []
    raise ArgumentError(
        f"{path}{where} does not fit the model: {', and '.join(wrong)}; save the state_dict() of this model alone."
    )


def _states(content: Mapping[Any, Any], keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """All dictionaries of tensors in a dictionary, with the keys that lead there."""
    if all(isinstance(value, Tensor) for value in content.values()):
        yield keys, {str(name): value for name, value in content.items()}
        return
    for name, value in content.items():
        if isinstance(value, Mapping) and len(keys) < _DEEPEST:
            yield from _states(value, (*keys, str(name)))


def _fit(keys: tuple[str, ...], state: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[FoundState]:
    """The ways in which a state has exactly the names that are wanted, behind some prefix."""
    if not wanted:
        if not state:
            yield FoundState({}, keys, "", 0)
        return
    needed = {name for name in wanted if not _only_training_reads(name)}
    first = next(name for name in wanted if name in needed or not needed)
    prefixes = [name.removesuffix(first) for name in state if name == first or name.endswith(f".{first}")]
    for prefix in prefixes:
        below = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if needed <= below.keys() <= set(wanted):
            absent = tuple(name for name in wanted if name not in below)
            yield FoundState(below, keys, prefix, len(state) - len(below), absent)


def _only_training_reads(name: str) -> bool:
    """Whether a name is that of a counter of batches, which old versions of torch did not store."""
    return name.rsplit(".", maxsplit=1)[-1] == "num_batches_tracked"


def _list_some(names: list[Any], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
