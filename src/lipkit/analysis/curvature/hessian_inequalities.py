"""Inequalities for the Hessian of a loss, as formulas of numbers that somebody else knows."""

import math
from collections.abc import Sequence

from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ROUNDINGS_512

# Below the first, a quotient of small numbers loses digits; above the second, a product has all of them.
_FEW_DIGITS = 2.0**-500
_ALL_DIGITS = 2.0**-900


def layerwise_hessian_bound(
    direct_norms: Sequence[float], weight_norms: Sequence[float], head_curvature: float
) -> float:
    """(sum_j ||dh_j/dtheta|| prod_{l > j} ||W_l||)^2 ||d^2 L/dh^2||, a bound of the Hessian of one sample's loss.

    theta are the parameters of the layers 1, ..., n before the last one, h = h_n is what they compute, and activations
    are 1-Lipschitz. It holds where the gradient of the loss in h is zero, as for a sample that is fitted exactly; for a
    mean over samples take the mean of the bounds.

    Guarantee: UPPER if the arguments are. Reference: Delattre 2025, theorem 7.2.1.

    Args:
        direct_norms: Norm of the derivative of the output of layer j in its own parameters only; n numbers.
        weight_norms: Spectral norms of the n layers; the first is not used.
        head_curvature: Spectral norm of the second derivative of the loss in h.
    """
    if len(direct_norms) != len(weight_norms) or not direct_norms:
        raise ArgumentError(f"Give both norms of every layer, got {len(direct_norms)} and {len(weight_norms)}.")
    if not all(0 <= value < math.inf for value in (*direct_norms, *weight_norms, head_curvature)):
        raise ArgumentError(f"Norms are finite numbers >= 0, got {[*direct_norms, *weight_norms, head_curvature]}.")
    total, behind = 0.0, 1.0
    for direct, weight in zip(reversed(direct_norms), reversed(weight_norms), strict=True):
        total += _product_up(direct, behind)
        behind = _product_up(behind, weight)
    return _product_up(_product_up(total, total), head_curvature) * (1 + len(direct_norms) * ROUNDINGS_512)


def smoothed_hessian_bound(smoothness: float, gradient: float, sigma: float) -> float:
    """H erf(epsilon / (sqrt(2) H sigma)) bounds the Hessian of the mean of L(theta + sigma z) over Gaussian z.

    It needs a gradient of L that is H-Lipschitz and of length at most epsilon everywhere, not only at a minimum. It is
    attained by the function of one variable whose slope is H t, cut off at +-epsilon.

    Guarantee: UPPER if `smoothness` and `gradient` are. Reference: Delattre 2025, corollary 7.2.2.

    Args:
        smoothness: H, a Lipschitz constant of the gradient.
        gradient: epsilon, a bound of the length of the gradient everywhere.
        sigma: Standard deviation of the smoothing.
    """
    if not (0 < smoothness < math.inf and 0 <= gradient < math.inf and 0 < sigma < math.inf):
        raise ArgumentError(f"Expected H > 0, epsilon >= 0 and sigma > 0, got {smoothness}, {gradient} and {sigma}.")
    # One after the other: the product of smoothness and sigma may leave the range of floats.
    argument = gradient / smoothness / sigma / math.sqrt(2)
    if argument > 0.5:
        return smoothness * math.erf(argument) * (1 + ROUNDINGS_512)
    # erf(x) <= 2 x / pi^(1/2), and the quotient keeps its digits where x does not.
    series = math.erf(argument) / argument if argument > _FEW_DIGITS else 2 / math.sqrt(math.pi)
    return _product_up(gradient / sigma, series / math.sqrt(2)) * (1 + ROUNDINGS_512)


def _product_up(a: float, b: float) -> float:
    """a b for numbers >= 0, one float up where it is too small to have all digits; 0 only if a factor is."""
    if not a or not b:
        return 0.0
    found = a * b
    return found if found > _ALL_DIGITS else math.nextafter(found, math.inf)
