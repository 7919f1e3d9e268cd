"""Moments of the likelihood ratio of a Gaussian mechanism on a Poisson batch, as upper bounds."""

import functools
import math

import numpy as np
import scipy
from jaxtyping import Float64

from lipkit.rounding.slacks import ULP

# Elementary functions and log-gamma are within a few units in the last place.
_FEW_ULPS = 16 * ULP
# exp(-80): the share of the integral that the points of the trapezoidal rule miss.
_DIGITS = 80.0
# The tails beyond so many deviations are below exp(-800).
_REACH = 40.0
_MOST_POINTS = 20_000
_SERIES = 1e-3


@functools.lru_cache(maxsize=4096)
def log_moment(rate: float, sigma: float, order: float) -> float:
    """log A(a) of one release, A(a) = E (1 - p + p exp((2 z - 1) / (2 s^2)))^a for z ~ N(0, s^2); p rate, s sigma.

    It is (a - 1) times the Rényi divergence of order a under adding or removing a record. For whole a

        A = 1 + sum over k = 2..a of C(a, k) (1 - p)^(a-k) p^k (exp((k^2 - k) / (2 s^2)) - 1),

    whose terms are all positive. For other a: the trapezoidal rule. The integrand is analytic for |Im z| < pi s^2,
    where its modulus is at most exp(Im(z)^2 / (2 s^2)) times its value at Re z, so that a step h misses at most
    a share of 2 exp(b^2/(2 s^2)) / (exp(2 pi b/h) - 1), b = min(pi s^2, 2 pi s^2/h); h makes that exp(-79).
    Where this takes too many points, the chord between whole orders, because log A is convex in a.

    Guarantee: an upper bound, rounding included; it dominates adding as well as removing. Cost: below a millisecond.
    Reference: Mironov, Talwar, Zhang 2019, for the moments and whole orders; Trefethen, Weideman 2014, for the error of
    the rule; its use here is ours.
    """
    if rate == 1.0:
        return order * (order - 1) / (2 * sigma * sigma) * (1 + _FEW_ULPS)
    if order == round(order):
        return _whole(rate, sigma, round(order))
    step = min(sigma / 4, 2 * math.pi**2 * sigma**2 / (_DIGITS + math.pi**2 * sigma**2 / 2))
    points = (order + 2 * _REACH * sigma) / step
    # The tail on the right is a share of exp(-800) rate^-order at most.
    if points > _MOST_POINTS or -order * math.log(rate) > 8 * _DIGITS:
        return _chord(rate, sigma, order)
    return _between(rate, sigma, order, step)


def _whole(rate: float, sigma: float, order: int) -> float:
    if order == 1:
        return 0.0
    k = np.arange(2, order + 1, dtype=np.float64)
    parts = np.stack(
        [
            np.full_like(k, math.lgamma(order + 1)),
            -scipy.special.gammaln(k + 1),
            -scipy.special.gammaln(order - k + 1),
            (order - k) * math.log1p(-rate),
            k * math.log(rate),
            (k * k - k) / (2 * sigma * sigma),
        ]
    )
    terms = parts.sum(0) + np.log(-np.expm1(-parts[-1]))
    # An exponent that is off by e makes its term off by a share e.
    share = _FEW_ULPS * (np.abs(parts).sum(0).max() + order)
    return float(np.logaddexp(0.0, scipy.special.logsumexp(terms))) * (1 + share)


def _chord(rate: float, sigma: float, order: float) -> float:
    low = math.floor(order)
    part = order - low
    return (1 - part) * _whole(rate, sigma, low) + part * _whole(rate, sigma, low + 1) * (1 + _FEW_ULPS)


def _between(rate: float, sigma: float, order: float, step: float) -> float:
    z = np.arange(-_REACH * sigma, order + _REACH * sigma + step, step)
    weight = -z * z / (2 * sigma * sigma) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    exponent = (2 * z - 1) / (2 * sigma * sigma)
    near = exponent < 30.0
    ratio = np.where(
        near,
        np.log1p(rate * np.expm1(np.minimum(exponent, 30.0))),
        np.logaddexp(math.log1p(-rate), math.log(rate) + exponent),
    )
    parts = weight + order * ratio
    error = _FEW_ULPS * float((np.abs(weight) + np.abs(order * ratio) + np.abs(exponent)).max())
    direct = float(scipy.special.logsumexp(parts))
    # What the rule misses of the three integrals of which `_excess` is made.
    missed = math.exp(1 - _DIGITS) * (2 + order)
    if direct > 0.5:
        return direct + error * (1 + direct) + missed
    # The sum is A - 1 without cancellation, because the ratio has mean 1.
    excess = float(_excess(weight, ratio, parts, order).sum())
    # Where the series ends the difference has lost three digits.
    return math.log1p(excess * (1 + error + _FEW_ULPS / _SERIES) + missed)


def _excess(
    weight: Float64[np.ndarray, " n"], ratio: Float64[np.ndarray, " n"], parts: Float64[np.ndarray, " n"], order: float
) -> Float64[np.ndarray, " n"]:
    """weight (m^a - 1 - a (m - 1)), never negative; `ratio` is log m, `parts` the log of weight m^a."""
    far = order * ratio > 1.0
    large = np.exp(parts) - np.exp(weight) * (1 - order) - order * np.exp(weight + ratio)
    small = np.where(far, 0.0, ratio)
    y = np.expm1(small)
    series = np.ones_like(y)
    for n in range(8, 2, -1):
        series = 1 + (order - n + 1) / n * y * series
    series *= order * (order - 1) / 2 * y * y
    plain = np.expm1(order * small) - order * y
    body = np.where(np.abs(y) * (order + 8) < _SERIES, series, plain)
    return np.where(far, large, np.exp(weight) * body)
