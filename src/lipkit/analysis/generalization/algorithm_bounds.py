"""Bounds of risks that look at the training algorithm instead of the class of its functions."""

import math

from lipkit.errors import ArgumentError


def pac_bayes_bound(empirical: float, divergence: float, count: int, failure: float) -> float:
    """Upper bound of the population risk of a random model, drawn from Q after the data were seen.

        The largest r with kl(empirical, r) <= (KL(Q, P) + log(2 m^(1/2) / failure)) / m,
        kl(q, r) = q log(q / r) + (1 - q) log((1 - q) / (1 - r)).

    With probability 1 - failure over m independent samples, for all Q at once, where P is a law over models that was
    fixed before the samples were seen, losses lie in [0, 1], and risks are means over Q.

    Guarantee: a bound up to rounding; nothing is proven of one drawn model, or if `empirical` is an estimate over
    few draws. Cost: a bisection. Reference: Maurer 2004, after Seeger 2002 and McAllester 1998.

    Args:
        empirical: Mean loss over Q on the m samples.
        divergence: KL(Q, P) in nats, such as |w - w_0|^2 / (2 s^2) for Gaussians of deviation s around w and w_0.
        count: m.
        failure: The probability with which the bound may fail.
    """
    if not (0 <= empirical <= 1 and 0 <= divergence < math.inf and count >= 1 and 0 < failure < 1):
        raise ArgumentError(
            "The mean loss lies in [0, 1], the divergence is a finite number >= 0, count at least 1 and failure in "
            f"(0, 1), got {empirical}, {divergence}, {count}, {failure}."
        )
    budget = (divergence + math.log(2 * math.sqrt(count) / failure)) / count
    # Written by 1 - r, because bounds near 1 have no digits otherwise.
    low, high = 0.0, 1 - empirical
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _divergence(empirical, middle) <= budget else (middle, high)
    return 1 - low


def stability_bound(empirical: float, stability: float, count: int, failure: float) -> float:
    """Upper bound of the population risk of a model that hardly depends on single samples.

        empirical + 2 beta + (4 m beta + 1) (log(1 / failure) / (2 m))^(1/2)

    With probability 1 - failure over m independent samples, for losses in [0, 1] and an algorithm without randomness:
    without one of its m samples the loss of its model changes by at most beta, whatever the samples and the point are.
    It says something where beta falls faster than m^(-1/2). For ridge regression and support vector machines with
    a constant K of the loss, kernels of at most k^2 and the weight l, beta = K^2 k^2 / (2 l m).

    Guarantee: a bound up to rounding, if beta is one. Cost: arithmetic.
    Reference: Bousquet, Elisseeff 2002, theorem 12 and theorem 22.

    Args:
        empirical: Mean loss on the m samples.
        stability: beta.
        count: m.
        failure: The probability with which the bound may fail.
    """
    if not (0 <= empirical <= 1 and 0 <= stability < math.inf and count >= 1 and 0 < failure < 1):
        raise ArgumentError(
            "The mean loss lies in [0, 1], beta is a finite number >= 0, count at least 1 and failure in (0, 1), got "
            f"{empirical}, {stability}, {count}, {failure}."
        )
    scatter = math.sqrt(-math.log(failure) / (2 * count))
    return empirical + 2 * stability + (4 * count * stability + 1) * scatter


def mutual_information_bound(information: float, count: int) -> float:
    """Upper bound of |E(population - empirical risk)|, the gap with its sign in the mean over data and trainings.

        (I(W; D) / (2 m))^(1/2)   for losses in [0, 1],

    where I is the mutual information of the trained model and its m independent samples, in nats. An algorithm with
    k outcomes has I <= log k; one with (epsilon, 0)-differential privacy for single samples has
    I <= m min(epsilon, epsilon^2).

    Guarantee: a bound up to rounding, if I is one. Cost: arithmetic. Reference: Xu, Raginsky 2017, theorem 1.
    """
    if not (0 <= information < math.inf and count >= 1):
        raise ArgumentError(f"Information is a finite number >= 0, and count at least 1, got {information}, {count}.")
    return math.sqrt(information / (2 * count))


def _divergence(share: float, left: float) -> float:
    """kl(share, 1 - left)."""
    found = -(1 - share) * math.log(left / (1 - share)) if share < 1 else 0.0
    return found + (share * math.log(share / (1 - left)) if share > 0 else 0.0)
