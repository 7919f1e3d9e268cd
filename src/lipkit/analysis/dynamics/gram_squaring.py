"""The largest singular values of many matrices at once, by matrix products alone: what a GPU is fast at."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition, as_wide, gap_of

# A Gram matrix is squared so often: its power 2^24.
_SQUARINGS = 24
# Between these many squarings no power is scaled; the largest value of p x p is then p^-8 or more of the norm before.
_UNSCALED = 4
# Squares of values that are farther apart than this share differ by exp(-64) in the power.
_RESOLVED = 2.0**-18


def decompose_together(matrices: Sequence[Float[Tensor, "_m _n"]]) -> list[GramDecomposition | None]:
    """What `decompose_gram` gives for each matrix, or None where that has to be asked.

    The power (A A')^(2^24) is u u' times a number; N = A A' / sigma^2 - u u' has powers that show the next value, and
    (1 - N)^-1 = (1 + N) (1 + N^2) (1 + N^4) ... . Gram matrices of one size are multiplied together.
    Where the squares of the two largest values agree to 2^-18, u is not known well enough: None, and so for a matrix
    that is zero, not finite, or squares out of the range of float64.

    Guarantee: ESTIMATE, in float64; value and vectors as by `decompose_gram`; the gap is at most 1e-6 of the value too
    large, and only if the third value is within 1e-5 of the second, else it has all digits.
    Cost: 72 products of Gram matrices. The device waits once for all matrices of one size.
    """
    wide = [as_wide(matrix) for matrix in matrices]
    solved = [(places, _solve(grams)) for places, grams in _stacks([one for one, _ in wide])]
    found: list[GramDecomposition | None] = [None] * len(matrices)
    # All sizes are under way before the first number is read.
    for places, (u, resolvents, squares) in solved:
        for row, (place, (first, second)) in enumerate(zip(places, squares.tolist(), strict=True)):
            matrix, transposed = wide[place]
            # False for what is not finite, too.
            if first > 0 and first - second > _RESOLVED * first:
                value = first**0.5
                v = matrix.mT @ u[row] / value
                gap = gap_of(first, second, matrix.shape)
                found[place] = GramDecomposition(matrix, resolvents[row], u[row], v, value, gap, transposed)
    return found


def spectral_norms_together(matrices: Sequence[Float[Tensor, "_m _n"]]) -> list[float]:
    """||A||_2 of matrices that are finite and not zero.

    Guarantee: ESTIMATE, at most 1e-6 of it too small, and only where the two largest values differ by less than 1e-5.
    Cost: 24 products of Gram matrices.
    """
    found = [0.0] * len(matrices)
    norms = [
        (places, _quotient(grams, _leading_vectors(grams)).sqrt())
        for places, grams in _stacks([as_wide(matrix)[0] for matrix in matrices])
    ]
    for places, values in norms:
        for place, value in zip(places, values.tolist(), strict=True):
            found[place] = value
    return found


def _stacks(wide: Sequence[Float64[Tensor, "_p _q"]]) -> list[tuple[list[int], Float64[Tensor, "b p p"]]]:
    """Gram matrices of one size and device together, and the places of their matrices."""
    groups: dict[tuple[int, torch.device], list[int]] = defaultdict(list)
    for place, matrix in enumerate(wide):
        groups[matrix.shape[0], matrix.device].append(place)
    return [(places, torch.stack([wide[i] @ wide[i].mT for i in places])) for places in groups.values()]


def _solve(
    grams: Float64[Tensor, "b p p"],
) -> tuple[Float64[Tensor, "b p"], Float64[Tensor, "b p p"], Float64[Tensor, "b 2"]]:
    """u, the inverse of sigma^2 - A A' off u, and the two largest squares."""
    u = _leading_vectors(grams)
    first = _quotient(grams, u)
    scale = first[:, None, None]
    onto = u.unsqueeze(2) * u.unsqueeze(1)
    rest = grams / scale - onto
    inverse, power = _invert(rest)
    next_one = _project(_column(power), u)
    second = _quotient(grams, next_one)
    return u, (inverse - onto) / scale, torch.stack([first, second], dim=1)


def _leading_vectors(grams: Float64[Tensor, "b p p"]) -> Float64[Tensor, "b p"]:
    power = grams
    for count in range(_SQUARINGS):
        if count % _UNSCALED == 0:
            power = power / _size(power)
        power = power @ power
    # One more product takes the rounding errors of the squarings off directions of small values.
    return _normalise((grams @ _column(power).unsqueeze(2)).squeeze(2))


def _invert(rest: Float64[Tensor, "b p p"]) -> tuple[Float64[Tensor, "b p p"], Float64[Tensor, "b p p"]]:
    """(1 - N)^-1 by doubling, and a multiple of N^(2^24), for N that is symmetric with values in [0, 1)."""
    inverse = torch.eye(rest.shape[1], dtype=rest.dtype, device=rest.device).expand_as(rest)
    # The power of N is `factor` times `power`; a factor that underflows belongs to a power that no longer counts.
    power, factor = rest, torch.ones(len(rest), 1, 1, dtype=rest.dtype, device=rest.device)
    for count in range(_SQUARINGS):
        if count % _UNSCALED == 0:
            size = _size(power)
            power, factor = power / size, factor * size
        inverse = torch.addcmul(inverse, factor, inverse @ power)
        power, factor = power @ power, factor.square()
    return inverse, power


def _size(power: Float64[Tensor, "b p p"]) -> Float64[Tensor, "b 1 1"]:
    """The Frobenius norm, or the smallest number, by which zero can be divided."""
    return torch.linalg.matrix_norm(power, keepdim=True).clamp(min=torch.finfo(power.dtype).tiny)


def _column(power: Float64[Tensor, "b p p"]) -> Float64[Tensor, "b p"]:
    """The column with the largest entry on the diagonal: of u u' it is u times its own largest entry."""
    place = power.diagonal(dim1=1, dim2=2).argmax(dim=1)
    found = power.gather(2, place[:, None, None].expand(-1, power.shape[1], 1)).squeeze(2)
    return _normalise(found)


def _project(w: Float64[Tensor, "b p"], u: Float64[Tensor, "b p"]) -> Float64[Tensor, "b p"]:
    """The part of w off u, of length one; zero if there is none."""
    return _normalise(w - (w * u).sum(1, keepdim=True) * u)


def _normalise(w: Float64[Tensor, "b p"]) -> Float64[Tensor, "b p"]:
    return w / torch.linalg.vector_norm(w, dim=1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)


def _quotient(grams: Float64[Tensor, "b p p"], w: Float64[Tensor, "b p"]) -> Float64[Tensor, " b"]:
    return (w * (grams @ w.unsqueeze(2)).squeeze(2)).sum(1)
