"""The Taylor series of a singular value along a polynomial path of matrices, and derivatives of any order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.decomposition import Decomposition, check_direction, check_matrix, decompose
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.linops import Dense
from lipkit.norms import SVD
from lipkit.rounding.float64 import gamma, norm_up, product_error
from lipkit.rounding.slacks import ROUNDINGS_512


@final
@dataclass(frozen=True, eq=False)
class Taylor:
    """t(x) = sum_j coefficients_j x^j, the series of sigma_k(A(x)), A(x) = A + x H_1 + x^2 H_2 + ... .

    With g(s) = sum_j s^j ||H_j|| and d the distance of sigma_k to the rest of the spectrum of T = [0 A; A' 0],
    `radius` is the r with g(r) = d / 2. For complex |x| < r exactly one eigenvalue of T(x) lies within g(|x|) < d / 2
    of sigma_k (Bauer and Fike; T is normal). So it is analytic in that disc, the series converges there, and for real x
    it is sigma_k(A(x)), because that value is there too (Weyl).
    """

    coefficients: Float64[Tensor, " order_plus_1"]
    radius: float
    path: tuple[Float64[Tensor, "m n"], ...]
    vectors: tuple[Float64[Tensor, "order_plus_1 m"], Float64[Tensor, "order_plus_1 n"]]
    norms: tuple[float, ...]
    start: Decomposition

    def __call__(self, x: float) -> float:
        """t(x), in float64."""
        total = 0.0
        for coefficient in reversed(self.coefficients.tolist()):
            total = total * x + coefficient
        return total

    def truncation(self, x: float) -> float:
        """A bound of what all omitted terms of the exact series sum to: (d/2) f^(n+1) / (1 - f), f = |x| / r < 1.

        In the disc |sigma_k(A(x)) - sigma_k| < d / 2, so Cauchy's inequality gives |c_j| <= (d/2) r^-j for j >= 1. The
        geometric series of these is the bound. It is known before the value is; `remainder` is tighter.

        Guarantee: UPPER for exact coefficients; the rounding of those in `coefficients` is not in it.
        """
        share = abs(x) / self.radius * (1 + ROUNDINGS_512)
        if not share < 1:
            raise ArgumentError(f"The series is bounded for |x| < {self.radius:g}, got {x}; use `remainder`.")
        bound = self.start.gap / 2 * share ** len(self.coefficients) / (1 - share)
        return bound * (1 + ROUNDINGS_512)

    def remainder(self, x: float) -> float:
        """An upper bound of |sigma_k(A(x)) - t(x)|, for the number that `t(x)` returns and any real x.

        The series of the vectors gives w = (u(x); v(x)) with Rayleigh quotient q = <w, T(x) w> / ||w||^2 and residual
        R = ||T(x) w - q w|| / ||w||. All eigenvalues of T(x) but sigma_k(A(x)) are at least d - g(|x|) from sigma_k(A),
        so q is at least p = d - g(|x|) - |q - sigma_k(A)| from them. If p > 0, Kato's and Temple's inequality gives
            |sigma_k(A(x)) - t(x)| <= |q - t(x)| + R^2 / p.
        Otherwise, and where it is smaller, it is Weyl's |t(x) - sigma_k(A)| + g(|x|), which holds everywhere.

        Guarantee: UPPER, the rounding of coefficients, vectors, norms, decomposition and of this formula counted.
        Cost: two products with A(x). Derived here.
        """
        if math.isnan(x):
            raise ArgumentError("A series is evaluated at a number, got NaN.")
        value, moved = self(x), self._moved(abs(x))
        weyl = abs(value - self.start.value) + self.start.error + moved
        quotient, doubt, residual = self._rayleigh(x)
        apart = self.start.gap - moved - abs(quotient - self.start.value) - self.start.error - doubt
        found = weyl
        if apart > 0:
            found = min(weyl, abs(quotient - value) + doubt + residual**2 / (apart * (1 - ROUNDINGS_512)))
        # Differences of numbers near sigma_k carry a rounding of sigma_k, not of themselves.
        found = found * (1 + ROUNDINGS_512) + gamma(8) * (abs(value) + self.start.value)
        # Powers of a large x may overflow; nothing is known then.
        return found if math.isfinite(found) else math.inf

    def _moved(self, size: float) -> float:
        """g(size), rounded up."""
        return _growth(self.norms, size)

    def _rayleigh(self, x: float) -> tuple[float, float, float]:
        """The Rayleigh quotient at x, a bound of its error, and a bound of the relative residual."""
        matrix, size, power = self.path[0], norm_up(self.path[0], 2), 1.0
        for change in self.path[1:]:
            power = power * x
            matrix = matrix + power * change
            size = size + abs(power) * norm_up(change, 2)
        powers = torch.full_like(self.coefficients, x).pow(torch.arange(len(self.coefficients))).to(matrix.device)
        u, v = powers @ self.vectors[0], powers @ self.vectors[1]
        a, b = matrix @ v, matrix.mT @ u
        square = torch.dot(u, u) + torch.dot(v, v)
        quotient = (torch.dot(u, a) + torch.dot(v, b)) / square
        # Any vector will do, so only what follows it counts: entries of A(x), two products, inner products.
        depth = sum(matrix.shape) + 4 * len(self.path) + len(self.coefficients) + 16
        slack = 2 * product_error(depth, torch.float64)
        length = square.sqrt() * (1 - slack)
        doubt = 4 * slack * size
        rest = torch.cat([a - quotient * u, b - quotient * v])
        residual = norm_up(rest, 1) / length + doubt
        return float(quotient), float(doubt), float(residual)


def taylor(
    matrix: Float[Tensor, "m n"], directions: Sequence[Float[Tensor, "m n"]], k: int = 0, order: int = 5
) -> Taylor:
    """The Taylor series of sigma_k(A + x H_1 + x^2 H_2 + ...) at x = 0, with its radius and a bounded remainder.

    For the eigenvector w of T = [0 A; A' 0] with T_j from H_j, reduced resolvent S, and w_0 = w:
        r_q = sum_{j=1..q} T_j w_{q-j},   c_q = <w_0, r_q>,   w_q = -S (r_q - sum_{j<q} c_j w_{q-j}).

    Guarantee: coefficients are computed in float64 (ESTIMATE); `Taylor.remainder` is an UPPER bound for what they give.
    Cost: one decomposition, then order^2 products with vectors. Refuses a value that is repeated or zero.
    Reference: Rayleigh and Schroedinger's recursion; the closed form of Luo 2025, theorem 3.4.2, is right to order two.

    Args:
        matrix: A, real.
        directions: H_1, H_2, ... in the order of their powers.
        k: Which singular value, 0 for the largest.
        order: The highest power of x.
    """
    if order < 0:
        raise ArgumentError(f"The order of a series is a number >= 0, got {order}.")
    if not directions:
        raise ArgumentError("A series needs at least one direction H_1; give directions=[H_1].")
    start = decompose(matrix, k)
    wide = check_matrix("A", matrix)
    changes = [check_direction(f"H_{j}", change, wide) for j, change in enumerate(directions, start=1)]
    coefficients, left, right = _series(start, changes, order)
    norms = tuple(float(SVD()(Dense(change)).value) for change in changes)
    series = torch.tensor(coefficients, dtype=torch.float64)
    if not bool(torch.isfinite(series).all()):
        raise NonFiniteError(
            f"Some coefficients up to order {order} are out of the range of float64; measure x in a smaller unit, so "
            "that directions become smaller."
        )
    vectors = (torch.stack(left), torch.stack(right))
    return Taylor(series, _radius(norms, start.gap / 2), (wide, *changes), vectors, norms, start)


def derivative(matrix: Float[Tensor, "m n"], directions: Sequence[Float[Tensor, "m n"]], k: int = 0) -> float:
    """D^n sigma_k(A)[H_1, ..., H_n], the symmetric n-linear form, by polarisation.

    sum over nonempty T of (-1)^(n - |T|) c_n(sum of H_i for i in T), where c_n(H) is the n-th Taylor coefficient along
    H; directions are first brought to the length of the gap, so that differences lose few digits.

    Guarantee: ESTIMATE, in float64. Cost: one decomposition and 2^n series. Refuses what `taylor` refuses.
    """
    count = len(directions)
    start = decompose(matrix, k)
    if not count:
        return start.value
    wide = check_matrix("A", matrix)
    changes = [check_direction(f"H_{j}", change, wide) for j, change in enumerate(directions, start=1)]
    if not all(bool(change.any()) for change in changes):
        return 0.0
    largest = [float(change.abs().max()) for change in changes]
    # Divided by their largest entries first: squares of others may leave the range of float64.
    scaled = [change / one for change, one in zip(changes, largest, strict=True)]
    lengths = [float(torch.linalg.vector_norm(change)) for change in scaled]
    units = [change * (start.gap / length) for change, length in zip(scaled, lengths, strict=True)]
    total = 0.0
    # Directions that are one direction need no polarisation.
    if all(torch.equal(unit, units[0]) for unit in units):
        total = math.factorial(count) * _series(start, units[:1], count)[0][count]
    else:
        for chosen in range(1, count + 1):
            for subset in combinations(units, chosen):
                along = torch.stack(subset).sum(0)
                total += (-1) ** (count - chosen) * _series(start, [along], count)[0][count]
    found = _product([total, *largest, *(length / start.gap for length in lengths)])
    if not math.isfinite(found):
        raise NonFiniteError(f"This derivative of order {count} is out of the range of float64; rescale directions.")
    return found


def _product(factors: Sequence[float]) -> float:
    """The product of numbers whose partial products may leave the range of float64."""
    mantissa, exponent = 1.0, 0
    for factor in factors:
        part, power = math.frexp(mantissa * math.frexp(factor)[0])
        mantissa, exponent = part, exponent + power + math.frexp(factor)[1]
    return math.ldexp(mantissa, exponent) if exponent <= 1024 else math.copysign(math.inf, mantissa)


def _series(
    start: Decomposition, changes: Sequence[Tensor], order: int
) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """Coefficients of the value and of both vectors, normalised so that <w_0, w_q> = 0 for q > 0."""
    left, right = [start.u / 2**0.5], [start.v / 2**0.5]
    coefficients = [start.value]
    for q in range(1, order + 1):
        steps = range(1, min(q, len(changes)) + 1)
        a, b = torch.zeros_like(left[0]), torch.zeros_like(right[0])
        for j in steps:
            a = a + changes[j - 1] @ right[q - j]
            b = b + changes[j - 1].mT @ left[q - j]
        coefficients.append(float(torch.dot(left[0], a) + torch.dot(right[0], b)))
        for j in range(1, q):
            a = a - coefficients[j] * left[q - j]
            b = b - coefficients[j] * right[q - j]
        first, second = start.resolvent(a, b)
        left.append(-first)
        right.append(-second)
    return coefficients, left, right


def _radius(norms: Sequence[float], goal: float) -> float:
    """The r with sum_j r^j norms_j = goal, rounded down; infinite if nothing moves."""
    if not any(norms):
        return float("inf")

    # Each term alone reaches the goal at or beyond the root.
    high = min((goal / norm) ** (1 / (j + 1)) for j, norm in enumerate(norms) if norm) * 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _growth(norms, middle) <= goal else (low, middle)
    return low


def _growth(norms: Sequence[float], size: float) -> float:
    """sum_j size^j norms_j, rounded up."""
    total = 0.0
    for norm in reversed(norms):
        total = (total + norm) * size
    return total * (1 + ROUNDINGS_512)
