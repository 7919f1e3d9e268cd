"""Bounds of one record's gradient, tensor by tensor."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_8192


@final
@dataclass(frozen=True, eq=False)
class Limits(Mapping[str, Bound]):
    """|d loss_i / d w|_2 <= limits[name].value for every record i, for each trained tensor w of a condensed model.

    w is the tensor that the network multiplies with or adds; what is computed before it, a parametrization, is not in
    the bound, and must not be noised with it. The statement is about the weights as they were when it was made.

    Args:
        bounds: The bounds by the names of the parameters after `lipkit.nn.condense`.
        sizes: The number of entries of each tensor.
    """

    bounds: Mapping[str, Bound]
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ArgumentError("No tensor of the model is trained, so there is no gradient to bound; unfreeze one.")
        if self.bounds.keys() != self.sizes.keys():
            raise ArgumentError(f"Sizes are those of the bounded tensors, got {sorted(self.sizes)}.")

    def __getitem__(self, name: str) -> Bound:
        return self.bounds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.bounds)

    def __len__(self) -> int:
        return len(self.bounds)

    @cached_property
    def total(self) -> Bound:
        """The bound of the gradient of all tensors together, sqrt(sum of squares)."""
        values = self.values_by_name()
        return Bound.from_value(
            math.hypot(*values.values()) * (1 + ROUNDINGS_8192), Kind.UPPER, f"{len(values)} tensors together"
        )

    def values_by_name(self) -> dict[str, float]:
        """The bounds as plain numbers."""
        return {name: float(bound.value) for name, bound in self.bounds.items()}

    def __str__(self) -> str:
        rows = "\n".join(f"  {name}: {bound}" for name, bound in self.bounds.items())
        return f"One record's gradient has at most norm {float(self.total.value):.6g}:\n{rows}"
