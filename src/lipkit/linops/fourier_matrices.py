"""Fourier transforms on a torus as products with matrices, whose rounding has a simple proof.

A fast transform has fewer operations, but its rounding depends on who made it. These transforms are sums, one axis
after the other; the sizes of images are small, and they cost little beside the products at each frequency.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lipkit.linops._base import Shape
from lipkit.rounding.slacks import UNIT

# Real and imaginary parts.
Parts = tuple[Tensor, Tensor]


def spectrum_of(x: Float[Tensor, "..."], positions: Sequence[Int64[Tensor, "_"]], size: Shape, sign: int) -> Parts:
    """X(f) = sum_t x[t] e^(sign 2 pi i f.p_t / size), for the frequencies f that determine all others.

    The last axes of x are those of the torus. On the last of them f runs to n // 2, because x is real; on the others
    it takes all n values. Frequencies take the places of the taps.

    Args:
        x: Numbers at the places `positions`, real.
        positions: For each axis, where its taps lie; more than once around the circle is meant as such.
        size: The torus.
        sign: 1 or -1, the sign of the exponent.
    """
    last = len(size) - 1
    cos, sin = _waves(positions[last], size[last] // 2 + 1, size[last], x)
    real, imaginary = _along_last(x, cos), _along_last(x, sign * sin)
    for axis in reversed(range(last)):
        cos, sin = _waves(positions[axis], size[axis], size[axis], x)
        real, imaginary = _turn(real, imaginary, axis - last - 1, cos, sign * sin)
    return real, imaginary


def from_spectrum(real: Float[Tensor, "..."], imaginary: Float[Tensor, "..."], size: Shape, sign: int) -> Tensor:
    """x with X(f) = sum_t x[t] e^(sign 2 pi i f.t / size) at the frequencies of `spectrum_of`, for t on the torus.

    It is the real part of the inverse transform of X with the missing frequencies filled in by X(-f) = conj X(f). So
    X that contradict each other, at f and -f, are replaced by their mean; matrices of norm at most 1 stay such.
    """
    last = len(size) - 1
    for axis in range(last):
        cos, sin = _waves(torch.arange(size[axis], device=real.device), size[axis], size[axis], real)
        real, imaginary = _turn(real, imaginary, axis - last - 1, cos, -sign * sin)
    n = size[last]
    frequencies = torch.arange(n // 2 + 1, device=real.device)
    cos, sin = _waves(frequencies, n, n, real)
    # All frequencies but 0 and n / 2 stand for two.
    twice = torch.where(2 * frequencies % n == 0, 1.0, 2.0).to(real.dtype)[:, None] / math.prod(size)
    return _along_last(real, twice * cos) + _along_last(imaginary, sign * twice * sin)


def rounding_of(size: Shape) -> float:
    """A bound of the rounding of one transform in float64, relative to the l2 norm, the transform taken as an isometry.

    Each axis is a sum of 2 n products. Their factors, sines and cosines, are at most 1 and known up to 24 units. So the
    error is at most (2 n + 26) u times a matrix of n x 2 n ones, of norm n sqrt(2), where the axis itself has the norm
    sqrt(n). Twice that, for what rounding of one axis grows to in the others.
    """
    return 2 * UNIT * sum((2 * n + 26) * math.sqrt(2 * n) for n in size)


def _waves(positions: Tensor, count: int, n: int, like: Tensor) -> Parts:
    """Cosines and sines of 2 pi f p / n, f < `count`, one row for each position, in the type of `like`."""
    # Integer arithmetic first: the angle keeps full accuracy, and half turns are real exactly.
    turns = torch.outer(positions.to(like.device), torch.arange(count, device=like.device)) % n
    angle = turns.to(torch.float64) * (2 * math.pi / n)
    sine = torch.where(2 * turns % n == 0, 0.0, angle.sin())
    return angle.cos().to(like.dtype), sine.to(like.dtype)


def _turn(real: Tensor, imaginary: Tensor, axis: int, cos: Tensor, sin: Tensor) -> Parts:
    """(a + b i) (cos + i sin), summed along an axis."""
    a, b = real.movedim(axis, -1), imaginary.movedim(axis, -1)
    turned = _along_last(a, cos) - _along_last(b, sin), _along_last(a, sin) + _along_last(b, cos)
    return turned[0].movedim(-1, axis), turned[1].movedim(-1, axis)


def _along_last(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix as one product of matrices: torch would multiply a batch of strided ones by as many small products."""
    return (x.reshape(-1, len(matrix)) @ matrix).reshape(*x.shape[:-1], matrix.shape[1])
