"""The constant of a scattering transform: how much energy means and moduli of wavelets can have together."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.rounding.slacks import ROUNDINGS_32, ROUNDINGS_8192


def scattering_constant(
    wavelets: Float64[Tensor, "scales angles height width"],
    rows: Float64[Tensor, " height"],
    columns: Float64[Tensor, " width"],
    step: int,
) -> float:
    """An upper bound of the l2 constant of x -> (A x, A |psi_a x|, A ||psi_a x| psi_b|, ...), scales rising, order 2.

    A is the mean with the kernel `rows` x `columns`, of which every `step`-th pixel of an axis is kept. The modulus is
    1-Lipschitz, so with energies e_2 = ||A||^2 of the last order and

        e_1(j) = || A*A + e_2 sum_{j' > j} D_j' ||,   e_0 = || A*A + sum_j e_1(j) D_j ||

    the constant is at most sqrt(e_0). Here D_j(w) = sum over angles of (|psi(w)|^2 + |psi(-w)|^2) / 2, because the
    images are real; psi(w) alone would be a bound for complex ones. Kept pixels mix only frequencies that differ by
    multiples of 2 pi / step: for each set of them the operators are a diagonal d and a rank one v v*, and
    ||diag(d) + v v*|| <= t if and only if d < t and sum |v|^2 / (t - d) <= 1, which is checked with sums rounded up.

    Guarantee: UPPER, for the numbers as given, roundings included. Cost: some dozen passes over the grid.
    """
    squares = wavelets.square().sum(1)
    mirrored = squares.flip((-2, -1)).roll((1, 1), (-2, -1))
    energies = [_aliases(e, step) for e in (squares + mirrored) / 2 * (1 + ROUNDINGS_8192)]
    mean = _aliases(_power(rows)[:, None] * _power(columns)[None, :] / step**2 * (1 + ROUNDINGS_8192), step)
    last = _top(torch.zeros_like(mean), mean)
    first = [_top(last * sum(energies[scale + 1 :], torch.zeros_like(mean)), mean) for scale in range(len(energies))]
    whole = _top(sum((e * first[scale] for scale, e in enumerate(energies)), torch.zeros_like(mean)), mean)
    return whole**0.5 * (1 + ROUNDINGS_32)


def _power(kernel: Float64[Tensor, " size"]) -> Float64[Tensor, " size"]:
    """|DFT of a kernel|^2, rounded up: a transform is off by less than 2^-40 of the sum of absolute values."""
    found = torch.fft.fft(kernel)
    return (found.abs() + ROUNDINGS_8192 * kernel.abs().sum()).square()


def _aliases(spectrum: Float64[Tensor, "height width"], step: int) -> Float64[Tensor, "classes aliases"]:
    """The frequencies in rows of those that are one after every `step`-th pixel is kept."""
    return spectrum.unflatten(1, (step, -1)).unflatten(0, (step, -1)).permute(1, 3, 0, 2).flatten(2).flatten(0, 1)


def _top(diagonal: Float64[Tensor, "classes aliases"], squares: Float64[Tensor, "classes aliases"]) -> float:
    """An upper bound of the largest eigenvalue of diag(d) + v v* over all classes, for d and |v|^2 as given."""
    diagonal = diagonal * (1 + ROUNDINGS_8192)
    low = float(diagonal.max())
    high = (low + float(squares.sum(1).max())) * (1 + ROUNDINGS_8192) + torch.finfo(torch.float64).tiny
    # `high` is a bound by the triangle inequality; halving goes on while a lower number is proven.
    for _ in range(60):
        middle = (low + high) / 2
        gaps = middle - diagonal
        proven = float(gaps.min()) > 0 and float((squares / gaps).sum(1).max()) * (1 + ROUNDINGS_8192) <= 1
        low, high = (low, middle) if proven else (middle, high)
    return high
