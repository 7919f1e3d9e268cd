"""Layers whose constant is a theorem about their formula."""

import inspect
from abc import abstractmethod
from enum import Enum
from typing import ClassVar

import torch
from torch import nn

from lipkit.bound import Bound, Kind
from lipkit.errors import UnsupportedError
from lipkit.linops import Shape
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_4, ROUNDINGS_8192

# Scalars are rounded to at least 24 binary digits before they multiply an activation; this makes them smaller by more.
SAFE = 1 - FLOAT32_ROUNDINGS_4


def at_least_one(gain: float, factor: float) -> float:
    """max(1, gain factor), rounded up: what a container promises of a part with this gain that it scales."""
    product = gain * factor
    # Below one by more than any rounding, or not rounded at all.
    if product < 1 - ROUNDINGS_8192 or (factor == 1 and product <= 1):
        return 1.0
    return max(1.0, product) * (1 + ROUNDINGS_8192)


def require_real(layer: nn.Module, dtype: torch.dtype | None) -> None:
    """Refuse complex parameters of a layer whose formula is for real numbers."""
    if dtype is not None and dtype.is_complex:
        raise UnsupportedError(
            f"{type(layer).__name__} is a layer of real numbers, got {dtype}; Linear, convolutions with one tap, "
            "ModReLU and OrthogonalRNN can be complex, this one takes the real and the imaginary parts as separate "
            "features."
        )


class Stated(nn.Module):
    """A layer that knows its l2 constant by a theorem: the same number for every shape and every value of parameters.

    Statements are about the function in real arithmetic with the numbers as stored. `kind` is EXACT where the constant
    is attained on every input shape.
    """

    kind: ClassVar[Kind] = Kind.UPPER

    @property
    @abstractmethod
    def gain(self) -> float:
        """An upper bound of the l2 constant, for inputs of every shape the module accepts.

        A container whose parts were exchanged for others of unknown constant raises UnsupportedError.
        """

    @property
    def every_norm(self) -> bool:
        """Whether `gain` bounds the constant from l_p to l_p for every p, and not for 2 alone."""
        return False

    @property
    def covers_complex(self) -> bool:
        """Whether `gain` also bounds the l2 constant between complex numbers."""
        return False

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As in torch; complex parameters are refused where the constant is proven for real numbers."""
        if param is not None and not self.covers_complex:
            require_real(self, param.dtype)
        super().register_parameter(name, param)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The constant on one input of `in_shape`, without batch axis: `gain`, by construction."""
        return Bound.from_value(self.gain, self.kind, f"by construction of {type(self).__name__}")

    def extra_repr(self) -> str:
        """The settings it was built with, for its text: arguments of the constructor that are plain values."""
        held = {name: vars(self).get(name) for name in inspect.signature(type(self)).parameters}
        shown = {name: value for name, value in held.items() if isinstance(value, float | int | tuple | Enum)}
        return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items())


class Contraction(Stated):
    """A layer of constant 1."""

    @property
    def gain(self) -> float:
        """1, by construction."""
        return 1.0


class EveryNorm(Stated):
    """A layer whose `gain` holds in every l_p: functions of single entries, sorts, permutations.

    Sorting moves two vectors no further apart in any l_p, because pairs in the same order are the cheapest for every
    convex cost (rearrangement).
    """

    @property
    def every_norm(self) -> bool:
        """True."""
        return True


class Isometric(Contraction):
    """A layer whose Jacobian is orthogonal wherever it exists: norms of gradients are kept."""

    kind: ClassVar[Kind] = Kind.EXACT
