"""Optimizers around another one: they choose where gradients are taken or add to the step, and leave the rest to it."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from lipkit.errors import ArgumentError

Closure = Callable[[], Any]


class Wrapper(torch.optim.Optimizer):
    """An optimizer that shares parameter groups and state with the one it wraps.

    Schedulers may hold either; options of the wrapper are keys of the groups, so each group may have its own. Loading a
    state keeps the two together. A closure clears the gradients, computes the loss, calls backward() and returns the
    loss, as for torch.optim.LBFGS.
    """

    def __init__(self, base: object, options: dict[str, Any]) -> None:
        if not isinstance(base, torch.optim.Optimizer):
            raise ArgumentError(
                f"{type(self).__name__} wraps an optimizer, got {type(base).__name__}; build one first."
            )
        self.base = base
        self.options = tuple(options)
        super().__init__(base.param_groups, {**base.defaults, **options})
        self._share()

    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    @abstractmethod
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; the loss is returned."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A further group, of this optimizer and of the wrapped one, its options checked."""
        if any(param_group is group for group in self.base.param_groups):
            # The constructor walks through the groups that are there already.
            for name, value in self.defaults.items():
                param_group.setdefault(name, value)
            self.check(param_group)
            self.param_groups.append(param_group)
            return
        completed = {**self.defaults, **param_group}
        self.check(completed)
        self.base.add_param_group(completed)

    def check(self, group: dict[str, Any]) -> None:
        """Refuse a group whose options lie outside their domain."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped optimizer, with the wrapper's options in its groups."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave; a state that does not fit is refused and changes nothing."""
        self.require(state_dict)
        self.take_up(state_dict)

    def require(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit this optimizer or the one it wraps."""
        if missing := [key for key in ("state", "param_groups") if key not in state_dict]:
            raise ArgumentError(
                f"This is no state of {type(self).__name__}: it has no {' and no '.join(missing)}; load what "
                "state_dict() gave."
            )
        sizes = [len(group["params"]) for group in state_dict["param_groups"]]
        mine = [len(group["params"]) for group in self.param_groups]
        if sizes != mine:
            raise ArgumentError(f"This state is of groups with {sizes} parameters, the optimizer has groups of {mine}.")
        for group in state_dict["param_groups"]:
            if missing := [name for name in self.options if name not in group]:
                raise ArgumentError(
                    f"This state is of another optimizer: its groups have no {' and no '.join(missing)}, which "
                    f"{type(self).__name__} needs; load one that {type(self).__name__} gave."
                )
            self.check(group)
        if isinstance(self.base, Wrapper):
            self.base.require(state_dict)

    def take_up(self, state_dict: dict[str, Any]) -> None:
        """Load a state that fits."""
        if isinstance(self.base, Wrapper):
            self.base.take_up(state_dict)
        else:
            self.base.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "base": self.base, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def parameters(self) -> list[torch.Tensor]:
        """All parameters, group after group."""
        return [p for group in self.param_groups for p in group["params"]]


def require_closure(closure: Closure | None, owner: object) -> Closure:
    """The closure, which optimizers that evaluate the loss several times cannot do without, with gradients enabled."""
    if closure is None:
        raise ArgumentError(
            f"{type(owner).__name__} evaluates the loss several times a step; call step(closure) with a function that "
            "clears the gradients, computes the loss, calls backward() and returns the loss."
        )
    return torch.enable_grad()(closure)


def check_size(owner: object, name: str, value: float) -> None:
    """Refuse a radius or a noise level that is negative, infinite or no number."""
    if not 0 <= value < math.inf:
        raise ArgumentError(f"{type(owner).__name__}.{name} must be a finite number >= 0, got {value}.")


@contextmanager
def displaced(parameters: list[torch.Tensor]) -> Iterator[None]:
    """Parameters may be moved inside this block; afterwards they are what they were, bit for bit."""
    kept = [p.detach().clone() for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
