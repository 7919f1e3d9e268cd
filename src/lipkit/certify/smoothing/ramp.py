"""The ramp: the function of a given Lipschitz constant that changes most under Gaussian noise.

Everything is in units of sigma. Let f have values in [0, 1] and the constant L, and let w = 1 / (L sigma) be the width
on which a ramp of that slope rises from 0 to 1; w = 0 for any measurable f. A ramp whose middle is q away has the
smoothed value

    M_w(q) = E Phi(q + w U),  U uniform on [-1/2, 1/2]:  the distribution function of Z + w U, Z a standard normal.

Theorem (Delattre 2025, theorem 4.6.5): |grad f~(x)| <= M_w'(q) / sigma at the q with M_w(q) = f~(x). So sigma times the
quantile M_w^-1(f~(x)) is a 1-Lipschitz function of x (this reading is ours). w = 0 is the normal quantile of Cohen et
al.; with sigma -> 0, sigma M_w^-1(p) tends to (p - 1/2) / L, the margin of a function that is not smoothed.
"""

from typing import Final

import numpy as np
import scipy
from jaxtyping import Float64
from numpy import ndarray

from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192

# The normal distribution function and its density are off by 1.1e-14 of their size above -8, by 2.2e-13 at -36 (the
# tests compare them with 40 digits). They are trusted with 1e-12, and with 1 + x^2/64 times that below zero.
_TRUST: Final = ROUNDINGS_8192
# Smaller shares count as this one, where that is safe: far below, exp(-q^2 / 2) underflows.
_LEAST_SHARE: Final = 1e-280
# Narrower ramps count as steps: they would win w^2 / 24 and lose the digits of 1 / w by cancellation.
_LEAST_WIDTH: Final = 1e-3
# Wider ramps count as this wide, which loses nothing that anyone could see.
_LARGEST_WIDTH: Final = 1e6


def quantile_below(share: Float64[ndarray, "..."], width: Float64[ndarray, "..."]) -> Float64[ndarray, "..."]:
    """The quantile M_w^-1(share), rounded down: a number q with M_w(q) <= `share`; -inf for a share of 0.

    Larger widths give quantiles that are further apart. A smaller width than the true one is safe for radii, because
    a function with the constant L has every larger one too. Never +inf.
    Cost: about ten evaluations of the normal distribution function for each entry.
    """
    return _quantile(share, width, -1.0)


def quantile_above(share: Float64[ndarray, "..."], width: Float64[ndarray, "..."]) -> Float64[ndarray, "..."]:
    """The quantile M_w^-1(share), rounded up; +inf for a share of 1, never -inf. See `quantile_below`."""
    return _quantile(share, width, 1.0)


def steepest(
    share: Float64[ndarray, "..."], width: Float64[ndarray, "..."], reach: Float64[ndarray, "..."]
) -> Float64[ndarray, "..."]:
    """sigma times the constant of Phi^-1(f~) on the ball of radius sigma `reach` around a point of value `share`.

        g(z) = M_w'(M_w^-1(Phi(z))) / phi(z)   at   z = |Phi^-1(share)| + reach,

    at most 1. Phi^-1(f~) itself moves by at most `reach` in the ball, and g is even and rises with |z|. Proof that it
    rises, i.e. h = Phi^-1(M_w) is convex on q > 0: h is odd, and |h'| <= 1. For a line of slope a < 1, Phi(line) is a
    wider normal distribution smoothed by Z, so h crosses it as often as a ramp crosses a normal distribution function
    (smoothing by Z does not add changes of sign): three times at most. h'' > 0 right of 0 (h'''(0) >= 0 by Jensen's
    inequality). Were h' to fall somewhere, let it first be at q. The tangent at q cuts the axis below h(0) = 0; moved a
    little down, it crosses h between -inf and 0, twice around q, once between and once behind: five times.

    Guarantee: rounded up.
    """
    shape = np.broadcast_shapes(share.shape, width.shape, reach.shape)
    # Numpy makes plain numbers of arrays without axes.
    share, width, reach = (np.broadcast_to(each, shape).ravel() for each in (share, width, reach))
    width = _usable(width)
    none = np.zeros_like(width)
    z = np.maximum(-quantile_below(share, none), quantile_above(share, none)) + reach
    z = np.minimum(z * (1 + ROUNDINGS_8), 1e3)
    tail = scipy.special.ndtr(-z) * (1 + _trust(-z))
    q = quantile_above(tail, width)
    low, high = q - width / 2, q + width / 2
    rise = scipy.special.ndtr(high) * (1 + _trust(high)) - scipy.special.ndtr(low) * (1 - _trust(low))
    usable = (width > 0) & (tail > _LEAST_SHARE)
    slope = np.where(usable, rise / np.where(usable, width * _density(z), 1.0) * (1 + 2 * _trust(-z)), 1.0)
    return np.minimum(slope, 1.0).reshape(shape)


def _usable(width: ndarray) -> ndarray:
    return np.where(width < _LEAST_WIDTH, 0.0, np.minimum(width, _LARGEST_WIDTH))


def _trust(x: ndarray) -> ndarray:
    return _TRUST * (1 + np.square(np.minimum(x, 0.0)) / 64)


def _density(x: ndarray) -> ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _quantile(share: ndarray, width: ndarray, side: float) -> ndarray:
    shape = np.broadcast_shapes(share.shape, width.shape)
    share, width = np.broadcast_to(share, shape).ravel(), _usable(np.broadcast_to(width, shape).ravel())
    # 1 - share is exact above one half. There, M_w(-q) = 1 - M_w(q) leads to the lower tail, which has all digits.
    mirrored = share > 0.5
    tail = np.where(mirrored, 1 - share, share)
    sides = np.where(mirrored, -side, side)
    lost = (tail < _LEAST_SHARE) & (sides < 0)
    tail = np.maximum(tail, _LEAST_SHARE)
    q = _move_outward(_root(tail, width), tail, width, sides)
    return (np.where(mirrored, -1.0, 1.0) * np.where(lost, -np.inf, q)).reshape(shape)


def _root(tail: ndarray, width: ndarray) -> ndarray:
    """Near the quantile of a share of at most one half, by Newton's method for log M_w, which is concave.

    M_w(q) <= Phi(q + w/2), so the start is left of the quantile; from there the steps rise towards it.
    """
    q = scipy.special.ndtri(tail) - width / 2
    open_ = np.flatnonzero(width > 0)
    for _ in range(64):
        if not open_.size:
            break
        at, w, t = q[open_], width[open_], tail[open_]
        value, error, slope = _distribution(at, w)
        q[open_] = np.minimum(at + value / slope * np.log(t / value), 0.0)
        open_ = open_[np.abs(value - t) > error]
    return q


def _move_outward(root: ndarray, tail: ndarray, width: ndarray, sides: ndarray) -> ndarray:
    """The root moved to its side until the distribution function there is beyond the share for certain."""
    _, error, slope = _distribution(root, width)
    move = 4 * error / slope + _TRUST * np.abs(root)
    q = root + sides * move
    unsure = np.arange(q.size)
    while unsure.size:
        value, error, _ = _distribution(q[unsure], width[unsure])
        passed = np.where(sides[unsure] < 0, value + error <= tail[unsure], value - error >= tail[unsure])
        unsure = unsure[~passed]
        move[unsure] *= 2
        q[unsure] = root[unsure] + sides[unsure] * move[unsure]
    return q


def _distribution(q: ndarray, width: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """M_w(q), a bound of its error, and its slope; from the antiderivative A(x) = x Phi(x) + phi(x) of Phi.

    M_w(q) = (A(q + w/2) - A(q - w/2)) / w. The difference cancels, so the error is relative to the sizes of all terms,
    the roundings of q + w/2 and q - w/2 included: A' = Phi.
    """
    low, high, scale = q - width / 2, q + width / 2, np.where(width > 0, width, 1.0)
    phi_low, phi_high = scipy.special.ndtr(low), scipy.special.ndtr(high)
    density_low, density_high = _density(low), _density(high)
    error = _trust(high) * (density_high + np.abs(high) * phi_high)
    error = error + _trust(low) * (density_low + np.abs(low) * phi_low)
    rise = (high * phi_high + density_high) - (low * phi_low + density_low)
    step = width == 0
    return (
        np.where(step, phi_high, rise / scale),
        np.where(step, _trust(high) * phi_high, error / scale),
        np.where(step, density_high, (phi_high - phi_low) / scale),
    )
