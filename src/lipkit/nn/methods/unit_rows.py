"""Weights whose rows, or columns, have norm at most one: networks between other norms than l2."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from lipkit.bound import Metric
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._arithmetic.safe_scaling import LEAST
from lipkit.nn.methods._base import Blocks, Promise, WeightMethod
from lipkit.norms import Mixed, Norm
from lipkit.rounding.slacks import UNIT

_EUCLIDEAN = Metric(2.0, math.inf)
_LARGEST = Metric(math.inf, math.inf)
# The exponent of the norm of a row, or of a column for l1 -> l1.
_EXPONENT = {_EUCLIDEAN: 2.0, _LARGEST: 1.0, Metric(1.0, 1.0): 1.0}


class _Lines(WeightMethod):
    """Rows, or columns for l1, divided by their norms; a norm below `floor` counts as that."""

    floor: ClassVar[float]

    def promise(self, geometry: Geometry) -> Promise:
        # On a circle shorter than the kernel taps meet, and the Euclidean norm of a sum is not bounded by its parts'.
        circular = geometry.mode is Padding.CIRCULAR and any(map(any, geometry.padding))
        if circular and self.metric(geometry) == _EUCLIDEAN:
            raise UnsupportedError(
                f"{self} bounds a circular convolution only on images longer than its kernel; use padding_mode='zeros'."
            )
        return Promise.CONTRACTION

    def norm(self, geometry: Geometry) -> Norm:
        return Mixed(*self.metric(geometry))

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        wide = raw.to(torch.float64)
        return store(wide / self._lines(wide, geometry).clamp(min=self.floor), raw.dtype)

    def norm_on_every_size(self, weight: Blocks, geometry: Geometry, enough: float) -> float:
        """The largest norm of a row or column: that of a whole window, of which padding only takes away."""
        return float(self._lines(weight, geometry).max())

    def _lines(self, wide: Tensor, geometry: Geometry) -> Tensor:
        """The norms of the rows or columns, rounded up, with the axes summed over kept."""
        metric = self.metric(geometry)
        # The adjoint of a convolution has its columns as rows.
        kept = 2 if (metric.p_out == 1) != geometry.transposed else 1
        axes = tuple([axis for axis in range(1, wide.ndim) if axis != kept])
        slack = 1 + (math.prod([wide.shape[axis] for axis in axes]) + 8) * UNIT
        return torch.linalg.vector_norm(wide, _EXPONENT[metric], dim=axes, keepdim=True) * slack


@final
@dataclass(frozen=True)
class UnitRows(_Lines):
    """Every row divided by its Euclidean norm: each output alone is 1-Lipschitz ("disjoint neurons").

    What is kept is ||W||_{2 -> inf} = max_i ||w_i||_2 = 1, not the l2 norm, which may be rows^(1/2). A margin between
    two outputs of such a layer has constant 2, not 2^(1/2).

    Guarantee: norm at most 1 from l2 to linf as stored. Reached: exactly unit rows. Cost: one pass. Gradient: of the
    formula; rows all below 2^-60 count as short and are not blown up.
    Reference: Serrurier et al. 2021, and their library, for last layers.
    """

    scale_free = True

    floor: ClassVar[float] = LEAST

    def __str__(self) -> str:
        return "unit rows"

    def metric(self, geometry: Geometry) -> Metric:
        return _EUCLIDEAN

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether every row has norm 1, to 1e-5."""
        return bool(((self._lines(weight.detach().to(torch.float64), geometry) - 1).abs() <= 1e-5).all())


@final
@dataclass(frozen=True)
class UnitLines(_Lines):
    """Every row (every column for l1) divided by max(1, its norm), so that ||W|| <= 1 in the norms of `between`:
        l2 -> linf    rows of Euclidean norm at most 1: the first layer of an l_inf network
        linf -> linf  rows of absolute sum at most 1: its further layers
        l1 -> l1      columns of absolute sum at most 1

    With sorting activations the first two are dense among the 1-Lipschitz functions to the reals.

    Guarantee: norm at most 1 in those norms as stored; for convolutions with stride it may stay below. Reaches every
    such matrix, which is its own free matrix. Cost: one pass. Gradient: of the formula.
    Reference: Anil, Lucas and Grosse 2019.

    Args:
        between: The norms of input and output, one of the three pairs above.
    """

    floor: ClassVar[float] = 1.0

    between: Metric = _LARGEST

    def __post_init__(self) -> None:
        if self.between not in _EXPONENT:
            raise ArgumentError(
                f"UnitLines knows l2->linf, linf->linf and l1->l1, not {self.between}; use an orthogonal method for l2."
            )

    def __str__(self) -> str:
        return f"{'columns' if self.between.p_out == 1 else 'rows'} of norm at most 1, {self.between}"

    def metric(self, geometry: Geometry) -> Metric:
        return self.between

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether no row or column exceeds norm 1, to 1e-6."""
        return bool((self._lines(weight.detach().to(torch.float64), geometry) <= 1 + 1e-6).all())
