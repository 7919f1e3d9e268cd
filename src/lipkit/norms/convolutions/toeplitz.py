"""Gram iteration on the kernel itself: no Fourier transform, no image size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from lipkit.bound import Bound, Kind
from lipkit.linops import LinearOperator
from lipkit.norms._base import Norm, positive_int, refuse_state
from lipkit.norms.convolutions.symbol_grid import symbols
from lipkit.rounding.float64 import gamma, inverse_scale, log_up, norm_up, normalize, product_error, undo_squarings

_CONV: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@final
@dataclass(frozen=True)
class Toeplitz(Norm):
    """Upper bound of a convolution by repeated filter Grams, K <- K* K, the full correlation of the kernel with itself.

    After `steps` products K has (taps - 1) 2^steps + 1 taps an axis and symbol (E* E)^(2^(steps - 1)), so
        sup_w ||E(w)||^(2^steps) <= max_i sum_{j, a} |K_ija|,
    and under zero padding on m positions (the larger side) also <= (m sum |K|^2)^(1/2); the smaller is taken.

    Guarantee: UPPER for every padding, stride (through phases) and size; the limit is the supremum of the symbol, the
    excess O(2^-steps). Cost: real arithmetic only, but 2^axes times the memory a step. Gradient: of the returned value.
    Reference: Delattre, Barthelemy, Allauzen 2024, with the factor of the second form corrected (docs/errata.md).
    """

    steps: int = 3

    def __post_init__(self) -> None:
        positive_int("Toeplitz.steps", self.steps)

    def __str__(self) -> str:
        return f"filter Gram, {self.steps} steps"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        scaled, exponent = normalize(kernels, self)
        flat = scaled.flatten(0, 1)
        # A group of zeros has the subgradient zero; the logarithm of its norm alone would give NaN.
        flat = torch.where(flat.detach().abs().amax(tuple(range(1, flat.ndim)), keepdim=True) > 0, flat, flat.detach())
        log_blocks = _iterate(flat, self.steps, first.section).unflatten(0, kernels.shape[:2])
        gain = math.log(first.gain * (1 + gamma(4)))
        log_upper = log_up(torch.ones_like(exponent), exponent) + log_blocks.amax(1) + gain
        return [Bound(value, Kind.UPPER, self) for value in log_upper]


def filter_gram(kernel: Tensor) -> Tensor:
    """K* K for each kernel of a batch (batch, rows, cols, *taps), on the smaller side: (batch, n, n, *(2 taps - 1))."""
    # conv sums over its channel axis, so the rows of what is left are the side that stays.
    keep = kernel if kernel.shape[1] <= kernel.shape[2] else kernel.transpose(1, 2)
    batch, rows = keep.shape[:2]
    taps = keep.shape[3:]
    image = keep.transpose(0, 1).flatten(1, 2)
    full = tuple(t - 1 for t in taps)
    found = _CONV[len(taps)](image, keep.flatten(0, 1).conj(), padding=full, groups=batch)
    return found.unflatten(1, (batch, rows)).transpose(0, 1)


def wiener(kernel: Tensor) -> Tensor:
    """The largest sum of all absolute entries of a row or of a column, rounded up: bounds the symbol everywhere."""
    size = kernel.abs().flatten(3).sum(3)
    largest = torch.maximum(size.sum(2).amax(1), size.sum(1).amax(1))
    return largest * (1 + gamma(math.prod(kernel.shape[2:]) + 4))


def gram_error(kernel: Tensor) -> Tensor:
    """A bound of the symbol of fl(K* K) - K* K: c |K|* |K|, whose symbol is at most c row sum column sum."""
    size = kernel.abs().detach()
    # torch convolves complex numbers by three real convolutions, which rounds about twice as much as by four.
    depth = max(kernel.shape[1:3]) * math.prod(kernel.shape[3:]) * (2 if kernel.is_complex() else 1) + 4
    rows, cols = size.flatten(3).sum((2, 3)).amax(1), size.flatten(3).sum((1, 3)).amax(1)
    return product_error(depth, kernel.dtype) * rows * cols * (1 + gamma(2 * depth + 8))


def _iterate(kernel: Tensor, steps: int, section: int | None) -> Tensor:
    """log of the bound, per kernel; the chain of roundings is walked back as in `gram`."""
    units: list[Tensor] = []
    errors: list[Tensor] = []
    for _ in range(steps):
        unit = inverse_scale(norm_up(kernel.detach(), kernel.ndim - 1))
        kernel = kernel * unit.reshape(-1, *(1,) * (kernel.ndim - 1))
        units.append(unit)
        errors.append(gram_error(kernel))
        kernel = filter_gram(kernel)
    size = wiener(kernel)
    if section is not None:
        size = torch.minimum(size, norm_up(kernel, kernel.ndim - 1) * math.sqrt(section) * (1 + gamma(2)))
    return undo_squarings(size, units, errors)
