"""A chain of layers with a constant that one chooses."""

import math
from collections import OrderedDict
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.combinators.scale import Scale
from lipkit.nn.core.gain import covers_complex, gain_of
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_4

# Covers the float64 product and quotient, and the conversion of the factor to 24 digits.
_DOWN = 1 - FLOAT32_ROUNDINGS_4


@final
class Sequential(nn.Sequential):
    """nn.Sequential with constant K: the output times K / (product of the constants of the parts), rounded down.

    K may be below or above 1, and parts need not be homogeneous: only the last output is scaled, by a number that does
    not depend on weights. Parts are layers of lipkit.nn, modules of torch.nn whose constant is known for every shape
    (see `gain_of`), modules with a property `gain`, and other Sequentials; anything else is refused. K is the constant
    in evaluation: dropout counts as the identity, and trains as in torch.

    Guarantee: constant K on every shape. It is as tight as the product of the parts' constants is. In bfloat16 and
    float16 those are what rounding can make of weights at worst, so `.bfloat16()` makes the output smaller: ten layers
    of 256 units keep 0.54 of it. Leave the parameters in float32 instead: train under autocast, which computes weights
    in float32 and rounds them then, and let `condense(model, torch.bfloat16)` prove the rounded weights.

    Args:
        modules: The parts in order, or one OrderedDict, as for nn.Sequential.
        K: The constant of the whole chain.
    """

    def __init__(self, *modules: Any, K: float = 1.0) -> None:
        super().__init__(*modules)
        if not 0 < K < math.inf:
            raise ArgumentError(f"Sequential.K must be a positive number, got {K}.")
        self.K = K
        _ = self.factor

    @property
    def factor(self) -> float:
        """The factor on the output; exactly 1.0 where none is needed."""
        product = 1.0
        for module in self:
            product *= gain_of(module)
        if product == self.K:
            return 1.0
        return self.K / product * _DOWN

    @property
    def gain(self) -> float:
        """K."""
        return self.K

    @property
    def covers_complex(self) -> bool:
        """True: complex values are refused before a part whose constant is for real ones."""
        return True

    def __getitem__(self, idx: slice | int) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A part; or, for a slice, an nn.Sequential of some parts: K and the factor belong to the whole chain alone.

        The slice computes what its parts do one after another, and `gain_of` multiplies their constants.
        """
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[idx]))  # pyright: ignore[reportArgumentType]
        return super().__getitem__(idx)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """K, on inputs of every shape."""
        return Bound.from_value(self.K, Kind.UPPER, f"Sequential, K = {self.K:g}")

    def forward(self, input: Tensor) -> Tensor:
        """The chain, times the factor."""
        found = input
        for module in self:
            if found.dtype.is_complex and not covers_complex(module):
                raise UnsupportedError(
                    f"The constant of {type(module).__name__} is known for real numbers, and it got {found.dtype} in a "
                    "Sequential; use a layer for complex numbers, such as ModReLU, or give it a property "
                    "`covers_complex` that is True."
                )
            found = module(found)
        factor = self.factor
        return found if factor == 1.0 else found * factor

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        """nn.Sequential with the same parts, and one more that multiplies where there is a factor."""
        # named_children would leave out a part that stands here twice.
        parts = OrderedDict((name, part) for name, part in self._modules.items() if part is not None)
        factor = self.factor
        if factor != 1.0:
            parts["factor"] = Scale(factor).train(self.training)
        return nn.Sequential(parts)

    def extra_repr(self) -> str:
        """The constant."""
        return f"K={self.K:g}"
