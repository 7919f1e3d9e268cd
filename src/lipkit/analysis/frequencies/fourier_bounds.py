"""Bounds of a Lipschitz constant from the Fourier coefficients of the function itself."""

import math

import torch
from jaxtyping import Inexact, Shaped
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.rounding.float64 import round_up

# What a product below the normal numbers may lose.
_SMALLEST = 1e-307


def fourier_bound(
    amplitudes: Inexact[Tensor, " count"], frequencies: Shaped[Tensor, "coefficients dimensions"]
) -> Bound:
    """Upper bound of the constant of f(x) = sum_n c_n exp(2 pi i <w_n, x>), by its spectral contributions.

        |f(x) - f(y)| <= |x - y|_2 sum_n 2 pi |w_n|_2 |c_n|.

    A real wave a sin(2 pi <w, x>) has the coefficients a/2 at w and -w; one line with c = a gives the same. For several
    outputs take the lengths of their coefficient vectors. The sum over frequencies of a set bounds the part of f with
    these frequencies in the same way. Equal to the constant if all phases agree at one point.

    Guarantee: UPPER for exactly these coefficients, rounded up. If they are c = transform times volume of a cell, the
    sum is a quadrature of the integral over 2 pi |w| |f^(w)|, and is a bound of f only up to the error of that: the
    integral must exist, which an integrable transform alone does not give. Coefficients of a window of a function that
    is not periodic are those of another function. Cost: one pass. Reference: Luo 2025, theorem 5.3.1, with the
    condition that its proof needs.

    Args:
        amplitudes: Coefficients, real or complex; their absolute values count.
        frequencies: In cycles per unit of each coordinate, one row for each coefficient.
    """
    if amplitudes.shape != frequencies.shape[:1] or frequencies.shape[1] < 1:
        raise ShapeError(
            "One frequency vector for each amplitude is needed, got shapes "
            f"{tuple(amplitudes.shape)} and {tuple(frequencies.shape)}."
        )
    if frequencies.is_complex():
        raise ArgumentError(f"Frequencies are real, got {frequencies.dtype}.")
    sizes = amplitudes.to(torch.complex128).abs() if amplitudes.is_complex() else amplitudes.double().abs()
    rows = frequencies.double()
    if not bool(torch.isfinite(sizes).all() & torch.isfinite(rows).all()):
        raise NonFiniteError("Some amplitudes or frequencies are NaN or infinite.")
    # Squares of small entries would vanish; so divide by the largest of each row first.
    largest = rows.abs().amax(1).clamp(min=_SMALLEST)
    ratios = torch.linalg.vector_norm(rows / largest[:, None], dim=1)
    # The amplitude comes first: lengths below the normal numbers have few digits.
    terms = sizes * ratios * largest
    lost = _SMALLEST * int(((sizes > 0) & (ratios > 0)).sum())
    total = 2 * math.pi * (terms.sum() + lost)
    return Bound.from_value(round_up(total, len(sizes) + frequencies.shape[1] + 12), Kind.UPPER, "sum of contributions")
