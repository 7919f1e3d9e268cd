"""What published statistics of smoothing give as printed, and what is true: numbers of docs/errata.md."""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
from scipy.special import betaincinv, ndtri
from scipy.stats import binom, multinomial

ALPHA = 0.05


def trinomial(n: int) -> np.ndarray:
    """All ways in which n votes can fall on three classes."""
    return np.array([(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)])


def lower(k: np.ndarray, n: int, a: float) -> np.ndarray:
    """Clopper and Pearson's limit; an empty count has 0."""
    return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, a), 0.0)


def upper(k: np.ndarray, n: int, a: float) -> np.ndarray:
    return 1 - lower(n - k, n, a)


def fixed_runner_up(shares: np.ndarray, n0: int, n: int) -> float:
    """The exact probability of a false certificate if n0 votes fix the top two classes, and n votes bound them."""
    first = trinomial(n0)
    order = np.argsort(-first, axis=1, kind="stable")[:, :2]
    weights = multinomial.pmf(first, n0, shares)
    truth = ndtri(shares[0]) - ndtri(shares[1])
    total = 0.0
    for i, j in permutations(range(3), 2):
        chosen = weights[(order == (i, j)).all(1)].sum()
        radius = ndtri(lower(np.arange(n + 1), n, ALPHA / 2))[:, None] - ndtri(upper(np.arange(n + 1), n, ALPHA / 2))
        wrong = radius > (0 if i else truth)
        k = np.arange(n + 1)
        # Votes for i, then votes for j among the rest.
        joint = binom.pmf(k, n, shares[i])[:, None] * binom.pmf(k, (n - k)[:, None], shares[j] / (1 - shares[i]))
        total += chosen * joint[wrong].sum()
    return total


def all_rivals(shares: np.ndarray, n: int) -> float:
    """The exact probability of a false certificate of the first class, with alpha/2 for it and for every rival."""
    counts = trinomial(n)
    radius = ndtri(lower(counts[:, 0], n, ALPHA / 2)) - ndtri(upper(counts[:, 1:], n, ALPHA / 2).max(1))
    return multinomial.pmf(counts, n, shares)[radius > ndtri(shares[0]) - ndtri(shares[1])].sum()


def union() -> list[str]:
    shares = np.array([0.36, 0.35, 0.29])
    assert all_rivals(shares, 40) < ALPHA
    return [
        f"{100 * all_rivals(shares, 40):.1f} %",
        f"{100 * fixed_runner_up(shares, 100, 1000):.1f} %",
    ]


def most() -> list[str]:
    largest = ndtri(1e-3 ** (1 / 10_000))
    assert 0.25 * largest < 5.89
    return [
        f"{largest:.4f}σ",
        f"{0.25 * largest:.4f}",
        f"{0.3 * largest:.4f}",
        f"{0.35 * largest:.4f}",
        f"{0.4 * largest:.4f}",
    ]


def hypotheses() -> list[str]:
    failing = binom.pmf(np.arange(11), 10, 0.5)[lower(np.arange(11), 10, ALPHA) > 0.5].sum()
    return [f"{1 - failing:.4f} ≥ 0.95", f"{failing:.4f} < 0.05"]


def observed() -> list[str]:
    shares, found = np.array([0.5, 0.05, 0.45]), []
    for n in (10, 40):
        counts = trinomial(n)
        weights = multinomial.pmf(counts, n, shares)
        gap = lower(counts[:, 0], n, ALPHA / 2) - upper(counts[:, 1], n, ALPHA / 2)
        if n == 10:
            found.append(f"{weights[(counts[:, 0] - counts[:, 1:].max(1)) / n > gap].sum():.4f}")
        found.append(f"{weights[gap <= 0.05].sum():.4f}")
    return found


def bernstein() -> list[str]:
    n, log = 100, math.log(2 / 1e-3)
    # The largest variance of votes in [0, 1], half zeros and half ones.
    variance = 0.25 * n / (n - 1)
    under = 2 * variance * log / n - 7 * log / (3 * (n - 1))
    assert under < 0
    return [f"{under:.4f}", f"{math.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1)):.4f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "A union over classes that is not needed": union,
    "Radii that so few samples cannot prove": most,
    "Two hypotheses that say the same": hypotheses,
    "A counter-example for observed gaps": observed,
    "The limits of low-variance votes": bernstein,
    "Maps that are chosen on the samples that prove": list,
}
