"""How rich a class of Lipschitz functions is on given points, and what this says about data that was not seen."""

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._seeds import generator
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# Points up to which all signs are tried: 2^11 assignments.
_ALL_SIGNS = 12


class Complexity(NamedTuple):
    """An empirical Rademacher complexity: a mean over signs, and its standard error, 0 if all signs were tried."""

    value: float
    standard_error: float


def rademacher_lipschitz(
    points: Float[Tensor, "count dimensions"], constant: float, draws: int | None = None, seed: int = 0
) -> Complexity:
    """Empirical Rademacher complexity of all f with constant at most K in l2 and f = 0 at the first point.

        R = E max over f of (1/m) sum_i s_i f(x_i),   s_i = +-1 at random.

    By the duality of Kantorovich and Rubinstein the maximum is K times the cheapest assignment of the points with s = 1
    to those with s = -1, where copies of the first point balance the numbers: no program is left to solve.

    Guarantee: each maximum is exact up to rounding; with `draws=None` (at most 12 points) so is the mean.
    Otherwise ESTIMATE, with its standard error. Cost: m^3 for each draw. The published bound of this complexity,
    2^(1/2) K max|x| / m^(1/2), is false for this class (docs/errata.md); the assignment is ours.

    Args:
        points: The first one is the anchor.
        constant: K.
        draws: Number of random signs, at least two; None for all.
        seed: Of the signs.
    """
    count = _check(points, constant)
    if draws is None and count > _ALL_SIGNS:
        raise ArgumentError(f"All signs are tried for at most {_ALL_SIGNS} points, got {count}; set draws.")
    if draws is not None and draws < 2:
        raise ArgumentError(f"A standard error needs at least two draws, got {draws}.")
    flat = points.double()
    # Squares of tiny or huge coordinates would leave the range of float64.
    scale = float(flat.abs().max()) if flat.numel() else 0.0
    flat = flat / scale if scale else flat
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").numpy(force=True)
    if draws is None:
        # f is zero at the anchor, so its sign does not matter.
        signs = np.array([(1, *rest) for rest in product((-1, 1), repeat=count - 1)])
    else:
        signs = torch.randint(2, (draws, count), generator=generator(seed)).numpy() * 2 - 1
    found = np.array([_cheapest(apart, one) for one in signs]) * (constant * scale / count)
    error = 0.0 if draws is None else float(found.std(ddof=1)) / math.sqrt(draws)
    return Complexity(float(found.mean()), error)


def rademacher_linear(points: Float[Tensor, "count dimensions"], constant: float) -> float:
    """K (sum_i |x_i|^2)^(1/2) / m: upper bound of the complexity of the linear functions <w, x> with |w|_2 <= K."""
    count = _check(points, constant)
    wide = points.detach().double()
    scale = float(wide.abs().max()) if wide.numel() else 0.0
    return constant * scale * float(torch.linalg.vector_norm(wide / scale)) / count if scale else 0.0


def generalization_bound(complexity: float, loss_constant: float, count: int, failure: float) -> float:
    """Upper bound of population minus empirical risk, with probability 1 - failure over m samples.

        2 Lip R + 3 (log(2 / failure) / (2 m))^(1/2)

    For losses in [0, 1] with constant Lip, and a class with empirical complexity at most R, all fixed before the m
    samples were seen. Nothing is proven if R is an estimate. Reference: Mohri, Rostamizadeh, Talwalkar 2018.
    """
    if not (0 <= complexity < math.inf and 0 <= loss_constant < math.inf and count >= 1 and 0 < failure < 1):
        raise ArgumentError(
            "Complexity and constant are finite numbers >= 0, count at least 1 and failure in (0, 1), got "
            f"{complexity}, {loss_constant}, {count}, {failure}."
        )
    return 2 * loss_constant * complexity + 3 * math.sqrt(math.log(2 / failure) / (2 * count))


def _cheapest(apart: Float64[np.ndarray, "count count"], signs: np.ndarray) -> float:
    plus, minus = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
    missing = len(plus) - len(minus)
    plus = np.append(plus, np.zeros(max(-missing, 0), dtype=int))
    minus = np.append(minus, np.zeros(max(missing, 0), dtype=int))
    costs = apart[np.ix_(plus, minus)]
    return float(costs[scipy.optimize.linear_sum_assignment(costs)].sum())


def _check(points: Tensor, constant: float) -> int:
    if points.ndim != 2 or len(points) < 1:
        raise ShapeError(f"Points are the rows of a matrix, got shape {tuple(points.shape)}.")
    if not bool(torch.isfinite(points).all()):
        raise NonFiniteError("Some points are NaN or infinite.")
    if not 0 <= constant < math.inf:
        raise ArgumentError(f"A Lipschitz constant is a number >= 0, got {constant}.")
    return len(points)
