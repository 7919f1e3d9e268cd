"""The layer in the place of a module, and the refusal to find one."""

from dataclasses import dataclass
from typing import final

from torch import nn

from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.methods._base import WeightMethod


@final
@dataclass(frozen=True)
class Replacement:
    """The layer in the place of a module, a description of it, and how much smaller its output is for an equal input.

    `module` is None where the original stays.
    """

    module: nn.Module | None
    words: str
    ratio: float = 1.0


@final
class Refusal(Exception):
    """Nothing can stand in the place of an operation; the message says what to do."""


@final
@dataclass(frozen=True)
class Choices:
    """The methods that constrain layers, and the weights they start from."""

    linear: WeightMethod
    conv: WeightMethod
    start: ConversionStart
