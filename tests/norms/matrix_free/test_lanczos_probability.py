"""The failure probability of randomised Lanczos, by simulation, at levels where failures are seen."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch

from lipkit.linops import Dense
from lipkit.norms import Lanczos
from lipkit.norms.matrix_free.krylov import lanczos, overlap_quantile

STARTS = 6000
STEPS = 6

# Eigenvalues of A*A for n unknowns, the largest of them 1 and simple.
SPECTRA: dict[str, Callable[[int], np.ndarray]] = {
    "two values": lambda n: np.r_[1.0, np.full(n - 1, 0.9)],
    "three values": lambda n: np.r_[1.0, np.full(n // 2, 0.9), np.full(n - 1 - n // 2, 0.1)],
    "slightly above a cluster": lambda n: np.r_[1.0, np.linspace(0.95, 0.9, n - 1)],
    "linear": lambda n: np.linspace(1, 1 / n, n),
    "crowded below": lambda n: np.linspace(1, 0, n) ** 2,
}


def margin(failure: float, starts: int) -> float:
    """Five standard deviations of a frequency: one run in three million goes beyond by chance."""
    return 5 * math.sqrt(failure * (1 - failure) / starts)


class Coefficients(NamedTuple):
    """Of the three-term recurrence, one row for each start: k diagonal ones and k off it, the last included."""

    diag: np.ndarray
    off: np.ndarray


def starts(n: int, count: int, complex_: bool = False) -> np.ndarray:
    """Uniform on the sphere."""
    rng = np.random.default_rng(n)
    draw = rng.standard_normal((count, n)) + (1j * rng.standard_normal((count, n)) if complex_ else 0)
    return draw / np.linalg.norm(draw, axis=1, keepdims=True)


def process(values: np.ndarray, start: np.ndarray) -> Coefficients:
    """Lanczos as in a textbook, orthogonalised twice."""
    basis, diag, off = [start], [], []
    for _ in range(min(STEPS, len(values))):
        w = basis[-1] * values
        diag.append((basis[-1].conj() * w).sum(1).real)
        for _ in range(2):
            for v in basis:
                w = w - (v.conj() * w).sum(1, keepdims=True) * v
        off.append(np.maximum(np.linalg.norm(w, axis=1), 1e-14))
        basis.append(w / off[-1][:, None])
    return Coefficients(np.stack(diag, 1), np.stack(off, 1))


def mass(some: Coefficients, t: np.ndarray | float) -> np.ndarray:
    """sum_j p_j(t)^2, up to the first coefficient lost in rounding."""
    before, now, previous = (np.full(len(some.diag), x) for x in (0.0, 1.0, 0.0))
    total, alive = np.ones(len(some.diag)), np.ones(len(some.diag), bool)
    for a, b in zip(some.diag.T, some.off.T, strict=True):
        before, now, previous = now, np.clip(((t - a) * now - previous * before) / b, -1e120, 1e120), b
        alive &= b > 1e-12
        total += np.where(alive, now**2, 0)
    return total


def misses(some: Coefficients, delta: float) -> np.ndarray:
    """Whether the root of sum p_j^2 = 1/delta^2 lies below the truth, 1: the sum grows, so it is larger there."""
    return mass(some, 1 - 1e-12) > 1 / delta**2


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("n", [8, 24, 64])
@pytest.mark.parametrize("name", SPECTRA)
def test_fails_no_more_often_than_it_says_at_all_steps_together(name: str, n: int, complex_: bool) -> None:
    diag, off = process(SPECTRA[name](n), starts(n, STARTS, complex_))
    for failure in (0.2, 0.05):
        delta = overlap_quantile(n, failure, complex_)
        missed = np.zeros(STARTS, bool)
        for k in range(1, STEPS + 1):
            missed |= misses(Coefficients(diag[:, :k], off[:, :k]), delta)
        assert missed.mean() <= failure + margin(failure, STARTS)


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_two_eigenvalues_make_it_sharp(n: int, complex_: bool) -> None:
    """One step spans the whole Krylov space, so the bound fails exactly when |<b, x_1>| < delta."""
    diag, off = process(SPECTRA["two values"](n), starts(n, STARTS, complex_))
    for failure in (0.2, 0.05):
        missed = misses(Coefficients(diag[:, :1], off[:, :1]), overlap_quantile(n, failure, complex_))
        assert abs(missed.mean() - failure) <= margin(failure, STARTS)


WRONG: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "one polynomial more than products": lambda a, b: (np.c_[a, a[:, -1:]], np.c_[b, b[:, -1:]]),
    "last coefficient not computed": lambda a, b: (a, np.c_[b[:, :-1], b[:, -2:-1]]),
    "coefficients off by one": lambda a, b: (a[:, :-1], b[:, 1:]),
}


@pytest.mark.parametrize("n", [8, 24, 64])
@pytest.mark.parametrize("fault", WRONG)
def test_a_step_more_than_was_made_would_be_noticed(fault: str, n: int) -> None:
    diag, off = process(SPECTRA["slightly above a cluster"](n), starts(n, STARTS))
    for failure in (0.2, 0.05):
        delta = overlap_quantile(n, failure, False)
        missed = np.zeros(STARTS, bool)
        for k in range(2, STEPS + 1):
            missed |= misses(Coefficients(*WRONG[fault](diag[:, :k], off[:, :k])), delta)
        assert missed.mean() > failure + margin(failure, STARTS)


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("n", [2, 8, 24])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_library_solves_this_equation(name: str, n: int, complex_: bool) -> None:
    values, start = SPECTRA[name](n), starts(n, 60, complex_)
    diag, off = process(values, start)
    for k in range(1, min(n, STEPS) + 1):
        diagonal = torch.from_numpy(values)
        krylov = lanczos(lambda v, d=diagonal: v * d, torch.from_numpy(start), k, 1e-14, lambda _: False, record=False)
        expected = Coefficients(diag[:, :k], off[:, :k])
        ritz = np.array([np.linalg.eigvalsh(np.diag(a) + np.diag(b, 1) + np.diag(b, -1))[-1]
                         for a, b in zip(expected.diag, expected.off[:, :-1], strict=True)])  # fmt: skip
        for failure in (0.2, 1e-3):
            delta = overlap_quantile(n, failure, complex_)
            root = krylov.upper(delta, 1e-14).numpy()
            excess = root - ritz
            # Lost coefficients (the Krylov space is exhausted) leave nothing but rounding between root and Ritz value.
            solved = excess > 1e-9
            # The root is rounded up, by less than a tenth of its distance.
            assert (mass(expected, root * (1 + 1e-9)) >= 1 / delta**2)[solved].all()
            assert (mass(expected, ritz + 0.9 * excess) <= 1 / delta**2)[solved].all()
            assert (root >= ritz * (1 - 1e-12)).all()


@pytest.mark.parametrize("n", [8, 32])
def test_the_method_itself(n: int) -> None:
    values = np.sqrt(SPECTRA["slightly above a cluster"](n))
    count, failure = 300, 0.2
    op = Dense(torch.diag(torch.from_numpy(values)))
    for steps in (1, 3, 6):
        bounds = Lanczos(steps=steps, rtol=0, failure=failure).many([op] * count)
        missed = sum(float(bound.value) < 1 - 1e-12 for bound in bounds) / count
        # Fresh entropy every time; delta is halved for rounding, so half the failures would be typical.
        assert missed <= failure + margin(failure, count)
        assert all(bound.lower is not None and bound.lower.value <= 1 for bound in bounds)
