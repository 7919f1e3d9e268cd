"""The steps that a function of one variable is made of."""

from dataclasses import dataclass
from typing import final

from lipkit.linops._base import Live
from lipkit.trace.nodes.pointwise import Activation


@final
@dataclass(frozen=True, eq=False)
class Combined(Live):
    """sum of rate times step, plus a constant."""

    terms: tuple[tuple[int, float], ...]
    constant: float


@final
@dataclass(frozen=True, eq=False)
class Multiplied(Live):
    """The product of two steps."""

    first: int
    second: int


@final
@dataclass(frozen=True, eq=False)
class Applied(Live):
    """An activation of a step."""

    activation: Activation
    inner: int


Step = Combined | Multiplied | Applied


@final
@dataclass(frozen=True, eq=False)
class Chosen(Live):
    """`second` where `weight` is 1, `first` where it is 0; only in drafts, of which every piece knows the weight."""

    weight: int
    first: int
    second: int


Draft = Step | Chosen
