"""Functions between the layers of a convex network: convex, and non-decreasing in every entry."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from lipkit._compilers import is_exporting
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.slopes import computes_as, slopes_of


class ConvexActivation(ABC):
    """A function of the last axis whose entries are convex and non-decreasing in every entry of the argument.

    Composed with convex functions it is convex again. Subclasses are frozen dataclasses.
    """

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """The function, on the last axis."""

    def width(self, features: int) -> int:
        """The length of the last axis afterwards: as before, unless the function says otherwise."""
        return features


class _Groups(ConvexActivation):
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ArgumentError(f"{type(self).__name__}.size must be at least 1, got {self.size}.")

    def check(self, features: int) -> None:
        """Refuse features that groups do not divide."""
        if features % self.size:
            raise ArgumentError(
                f"{type(self).__name__}({self.size}) needs a multiple of {self.size} features, got {features}."
            )


@final
@dataclass(frozen=True)
class CumulativeMax(_Groups):
    """(z_1, max(z_1, z_2), ..., max(z_1, ..., z_g)) in groups of `size` neighbours: as many entries as before.

    One entry of a group stays linear, so gradients always pass. Constant sqrt(size) in l2: an entry may be the largest
    of all that follow. Reference: Béthune 2024, section 7.1; maxima of groups: Warin 2023.

    Args:
        size: Number of neighbouring entries in a group.
    """

    size: int = 4

    def __call__(self, z: Tensor) -> Tensor:
        groups = z.unflatten(-1, (-1, self.size))
        if is_exporting():
            # One operation, which the readers of exported graphs know.
            return groups.cummax(-1).values.flatten(-2)
        # One maximum after another: torch has no rule for cummax under vmap.
        found = list(groups.unbind(-1))
        for i in range(1, self.size):
            found[i] = torch.maximum(found[i - 1], found[i])
        return torch.stack(found, -1).flatten(-2)

    def width(self, features: int) -> int:
        self.check(features)
        return features


@final
@dataclass(frozen=True)
class GroupMax(_Groups):
    """The largest of `size` neighbours: fewer entries, by this factor. Constant 1 in l2. Reference: Warin 2023.

    Args:
        size: Number of neighbouring entries in a group.
    """

    size: int = 2

    def __call__(self, z: Tensor) -> Tensor:
        return z.unflatten(-1, (-1, self.size)).amax(-1)

    def width(self, features: int) -> int:
        self.check(features)
        return features // self.size


@final
@dataclass(frozen=True)
class GroupLogSumExp(_Groups):
    """t log sum exp(z / t) of `size` neighbours, a smooth maximum: within t log(size) of it. Constant 1 in l2.

    Args:
        size: Number of neighbouring entries in a group.
        temperature: t; the smaller, the nearer to the maximum.
    """

    size: int = 2
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(f"GroupLogSumExp.temperature must be a positive number, got {self.temperature}.")

    def __call__(self, z: Tensor) -> Tensor:
        grouped = z.unflatten(-1, (-1, self.size))
        return (grouped / self.temperature).logsumexp(-1) * self.temperature

    def width(self, features: int) -> int:
        self.check(features)
        return features // self.size


@final
@dataclass(frozen=True)
class Entrywise(ConvexActivation):
    """A module of torch.nn that is a convex, non-decreasing function of every entry.

    Known ones: ReLU, Softplus, LeakyReLU with a slope in [0, 1], ELU with 0 <= alpha <= 1, CELU, Identity.

    Args:
        module: The activation.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        # Refuses those without a constant (a softplus that jumps, a slope that is not finite) in its own words.
        slopes = slopes_of(self.module)
        convex = computes_as(self.module, nn.ReLU, nn.Softplus, nn.LeakyReLU, nn.ELU, nn.CELU, nn.Identity) and not (
            isinstance(self.module, nn.Softplus) and self.module.beta < 0
        )
        if slopes is None or not convex or slopes[0] < 0 or slopes[1] > 1:
            raise UnsupportedError(
                f"A convex network needs convex, non-decreasing activations, and {self.module} is not known to be one; "
                "use nn.ReLU(), nn.Softplus(), nn.LeakyReLU(slope in [0, 1]), nn.ELU(alpha <= 1), nn.CELU(), "
                "CumulativeMax(), GroupMax() or GroupLogSumExp()."
            )

    def __call__(self, z: Tensor) -> Tensor:
        return self.module(z)


def convex_activation(given: ConvexActivation | nn.Module) -> ConvexActivation:
    """The activation of a convex network: one of the classes above, or a module of torch.nn that is checked."""
    if isinstance(given, ConvexActivation):
        return given
    if not isinstance(given, nn.Module):
        raise ArgumentError(
            "An activation is CumulativeMax(), GroupMax(...), GroupLogSumExp(...) or a module of torch.nn, got "
            f"{given!r:.60}."
        )
    return Entrywise(given)
