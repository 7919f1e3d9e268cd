"""Radii of smoothed classifiers as published, without rounding: baselines that lipkit's own must not stay below.

They are dominated, so the library does not offer them. p and q are the shares of the label and of its rival.
"""

import math

import scipy


def cohen(p: float, q: float, sigma: float) -> float:
    """Cohen, Rosenfeld, Kolter 2019, with the share of the rival."""
    return sigma / 2 * float(scipy.special.ndtri(p) - scipy.special.ndtri(q))


def one_against_all(p: float, sigma: float) -> float:
    return sigma * float(scipy.special.ndtri(p))


def weak_law(p: float, q: float, sigma: float) -> float:
    """Delattre 2025, equation 5.2."""
    return math.sqrt(math.pi / 2) * sigma * (p - q)


def coordinate_law(p: float, q: float, sigma: float, constant: float) -> float:
    """Delattre 2025, equation 5.5; `constant` is of one output."""
    return (p - q) / (2 * constant * math.erf(1 / (2 * math.sqrt(2) * constant * sigma)))


def joint_law(p: float, q: float, sigma: float, constant: float) -> float:
    """Delattre 2025, equation 5.6; `constant` is of the whole map into the simplex."""
    return (p - q) / (math.sqrt(2) * constant * math.erf(1 / (2 * constant * sigma)))


def unsmoothed(p: float, q: float, pair: float) -> float:
    """The margin over the constant of the difference, of any function with these two values."""
    return (p - q) / pair
