"""The state of a training between two updates, so that one that was killed goes on where it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lipkit.bounds.certificates.identity import sha256_of
from lipkit.errors import RecordError


@runtime_checkable
class Checkpoints(Protocol):
    """Keeps the state of a training somewhere: a tree of mappings, lists, numbers, strings and tensors.

    Guarantee: a training that is given the state of another one of the same settings and data ends with the same
    weights, to the bit on a CPU with the same number of threads, if nothing in its network draws random numbers.
    """

    def load(self) -> Mapping[str, Any] | None:
        """The state that a training left which did not end, None to start anew; asked for once, before the updates."""
        ...

    def after_update(self, done: int, steps: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Told of every update that was made, and of how many there are.

        Calling `state` copies nothing: write it down before the next update. An error that is raised here ends the
        training.
        """
        ...


@final
@dataclass(frozen=True, eq=False)
class ResumableTraining:
    """What an update changes, and what must not change between two runs of one training.

    Args:
        settings: By name.
        data: What is learned from.
        model: The network, in training.
        optimizers: Those of its weights.
        source: Where the random numbers of the updates come from.
    """

    settings: Mapping[str, object]
    data: Sequence[Tensor]
    model: nn.Module
    optimizers: Sequence[Optimizer]
    source: torch.Generator

    def state(self, step: int, more: Mapping[str, Any]) -> dict[str, Any]:
        """The state after so many updates, with what else the training goes on with."""
        return {
            "settings": self._words, "data": self._hashes, "step": step, "more": dict(more),
            "model": self.model.state_dict(), "optimizers": [one.state_dict() for one in self.optimizers],
            "source": self.source.get_state(),
        }  # fmt: skip

    def resume(self, state: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """Go back to a state: how many updates were made, and `more`; that of another training is a `RecordError`."""
        try:
            changed = [f"{k} was {v}" for k, v in state["settings"].items() if self._words.get(k) != v]
            if state["data"] != self._hashes:
                changed.append("the data were others")
            if not changed:
                self._put_back(state)
                return int(state["step"]), state["more"]
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise RecordError(
                "The checkpoint does not fit to the network and the optimizers of this training; remove it to start "
                "anew."
            ) from error
        raise RecordError(
            f"The checkpoint is of another training ({', '.join(changed)}); give the settings and the data that it was "
            "made with, or remove it to start anew."
        )

    def _put_back(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, found in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(found)
        self.source.set_state(state["source"])

    @cached_property
    def _words(self) -> dict[str, str]:
        return {name: _said(value) for name, value in self.settings.items()}

    @cached_property
    def _hashes(self) -> list[str]:
        return [sha256_of(one) for one in self.data]


def _said(value: object) -> str:
    """A setting in words that are the same in every process: no address of an object."""
    return type(value).__qualname__ if type(value).__repr__ is object.__repr__ else repr(value)
