"""Weights scaled down until an induced norm is at most a radius."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Metric
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._base import Blocks, Promise, WeightMethod
from lipkit.norms import Auto, Mixed, Norm
from lipkit.rounding.slacks import UNIT

# Gram products for p = 2; the bound exceeds the norm by at most rank^(2^-7) - 1, 5 % at rank 512.
_STEPS = 6


@final
@dataclass(frozen=True)
class LpBall(WeightMethod):
    """W / max(1, ||W||_p / radius), untouched inside the ball: ||W||_p is the norm from l_p to l_p.

        p = 1    the largest absolute column sum, also of convolutions
        p = inf  the largest absolute row sum, also of convolutions
        p = 2    matrices: the upper bound (tr (W'W)^64)^(1/128) by six Gram products in float64, so that the result is
                 within the ball for certain, and up to rank^(1/128) below its border

    Guarantee: norm at most `radius` (<= 1) from l_p to l_p as stored. Reaches every such matrix, which is its own free
    matrix (for p = 2: with the bound in place of the norm). Cost: one pass; 6 products of the smaller side for p = 2.
    Gradient: of the formula.
    Reference: Gouk et al. 2021; Delattre et al. 2023 for the bound.

    Args:
        p: Exponent of the norm: 1, 2 or infinity.
        radius: Largest norm, in (0, 1].
    """

    p: float = 2.0
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.p not in (1, 2, math.inf):
            raise ArgumentError(f"LpBall.p must be 1, 2 or inf, got {self.p}.")
        if not 0 < self.radius <= 1:
            raise ArgumentError(
                f"LpBall.radius must be in (0, 1], got {self.radius}; multiply after the layer for a larger one."
            )

    def __str__(self) -> str:
        return f"l{self.p:g} norm at most {self.radius:g}"

    def promise(self, geometry: Geometry) -> Promise:
        if self.p == 2 and math.prod(geometry.taps) != 1:
            raise UnsupportedError(
                f"LpBall(2) is for matrices, and kernel {geometry.taps} is none; use Spectral, Rescale or AOL."
            )
        return Promise.CONTRACTION

    def metric(self, geometry: Geometry) -> Metric:
        return Metric(float(self.p), float(self.p))

    def norm(self, geometry: Geometry) -> Norm:
        return Auto(failure=0) if self.p == 2 else Mixed(self.p, self.p)

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        wide = raw.to(torch.float64)
        size = self._size(wide, geometry).reshape(-1, *(1,) * (raw.ndim - 1))
        return store(wide * (self.radius / size.clamp(min=self.radius)), raw.dtype)

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether the norm, for p = 2 the bound of it, is at most the radius, to 1e-6."""
        return bool((self._size(weight.detach().to(torch.float64), geometry) <= self.radius * (1 + 1e-6)).all())

    def _size(self, wide: Tensor, geometry: Geometry) -> Tensor:
        if self.p == 2:
            return _gram_bound(wide.flatten(2))
        # The adjoint of a convolution has its columns as rows.
        kept = 2 if (self.p == 1) != geometry.transposed else 1
        axes = tuple([axis for axis in range(1, wide.ndim) if axis != kept])
        slack = 1 + (math.prod([wide.shape[axis] for axis in axes]) + 8) * UNIT
        return wide.abs().sum(axes).amax(-1) * slack


def _gram_bound(matrices: Tensor) -> Tensor:
    """An upper bound of the spectral norms: the Schatten norm of order 2^(_STEPS + 1), rounded up."""
    small = matrices.mT if matrices.shape[-2] < matrices.shape[-1] else matrices
    rows, n = small.shape[-2:]
    largest = small.detach().abs().amax((-2, -1)).clamp(min=1e-300)
    small = small / largest[:, None, None]
    log = torch.zeros_like(largest)
    for step in range(_STEPS + 1):
        size = torch.linalg.vector_norm(small, dim=(-2, -1)).clamp(min=1e-300)
        log = log + size.log() / 2**step
        if step < _STEPS:
            small = small / size[:, None, None]
            small = small.mT @ small
    # A matrix of Frobenius norm 1 has norm n^(-1/2) or more, its Gram matrix 1/n, and rounding changes that by
    # gamma_rows: relative errors of n gamma at each step, of which later steps count half each.
    slack = 1 + 4 * n * (rows + n + 16) * UNIT
    return log.exp() * largest * slack
