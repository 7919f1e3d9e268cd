"""The skew kernel whose exponential is a given one, or near it."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import Shape


def skew_logarithm(
    kernel: Float64[Tensor, "groups rows cols *taps"], shape: Shape
) -> Float64[Tensor, "groups n n *less"]:
    """A of `shape` = (n, n, *taps) with exp(A) near the kernel: at each frequency A = i acos-and-asin of its values.

    Of the unitary part U of the symbol, about the centre of the kernel, (U - U*) / 2i = V sin(t) V*, and the diagonal
    of V*(U + U*) V / 2 is cos(t). Then A(w) = i V t V*, of which the central taps are kept. Exact for exponentials of
    such kernels with n rows and columns, up to degenerate frequencies with angles of more than pi/2; where rows or
    columns are missing, those of the identity take their place.

    Cost: a singular value and an eigenvalue decomposition for each frequency of the kernel.
    """
    side, _, *taps = shape
    lengths = tuple(kernel.shape[3:])
    axes = tuple(range(3, kernel.ndim))
    square = torch.zeros(len(kernel), side, side, *lengths, dtype=torch.float64, device=kernel.device)
    centre = (slice(None), slice(None), slice(None), *(t // 2 for t in lengths))
    square[centre] = torch.eye(side, dtype=torch.float64, device=kernel.device)
    rows, cols = kernel.shape[1:3]
    square[:, :rows, :cols] = kernel
    # The centre of the kernel is at zero: its symbol has the phases of A.
    rolled = square.roll([-(t // 2) for t in lengths], axes)
    symbol = torch.fft.fftn(rolled, dim=axes).flatten(3).movedim(3, 1)
    left, _, right = torch.linalg.svd(symbol)
    unitary = left @ right
    sines, vectors = torch.linalg.eigh((unitary - unitary.mH) / 2j)
    cosines = torch.diagonal(vectors.mH @ (unitary + unitary.mH) @ vectors, dim1=-2, dim2=-1).real / 2
    angles = torch.atan2(sines, cosines)
    skew = (vectors * (1j * angles).unsqueeze(-2)) @ vectors.mH
    found = torch.fft.ifftn(skew.movedim(1, 3).unflatten(3, lengths), dim=axes).real
    found = found.roll([t // 2 for t in taps], axes)
    for axis, t in enumerate(taps, 3):
        found = found.narrow(axis, 0, t)
    assert math.prod(found.shape[1:]) == math.prod(shape)
    return found
