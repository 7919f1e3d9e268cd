"""Lanczos on A* A with full reorthogonalisation, and what it proves with high probability."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.linalg
import scipy.special
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.norms._recording import recorded

# How many steps are replayed before the basis they sweep over is enlarged.
_STAGE = 63


@final
@dataclass(frozen=True)
class Krylov:
    """k steps of Lanczos on positive semidefinite maps G, for a batch of starts.

    T = tridiag(offdiag, diag, offdiag) with `offdiag` including the last, k-th coefficient; `basis` holds k unit
    vectors. In terms of A this is the one-sided Golub-Kahan process: diag and offdiag are its alpha_j^2 + beta_{j-1}^2
    and alpha_j beta_j.
    """

    diag: Float[Tensor, "batch k"]
    offdiag: Float[Tensor, "batch k"]
    basis: Inexact[Tensor, "batch k n"]

    def ritz(self) -> tuple[Float[Tensor, " batch"], Inexact[Tensor, "batch n"]]:
        """The largest Ritz value of G (from below) and its unit vector."""
        values, vectors = self._top()
        top = torch.from_numpy(vectors).to(self.basis)
        return torch.from_numpy(values).to(self.diag.device), (top.unsqueeze(1) @ self.basis).squeeze(1)

    def upper(self, delta: float, noise: float) -> Float[Tensor, " batch"]:
        """The a-posteriori upper bound of the largest eigenvalue of G, given |<start, x_1>| >= delta.

        With v_j = p_j(G) start, orthonormality gives sum_{j<=k} p_j(lambda_1)^2 <= 1/delta^2; the sum grows beyond the
        largest Ritz value, so its root there bounds lambda_1, for every k at once. Coefficients below the rounding
        `noise` (relative to the Ritz value) are raised to it, which only raises the root, and end the recurrence.
        """
        recurrence = _Recurrence.of(self, self._top()[0], noise)
        low, high = np.full(len(self.diag), math.log(1e-17)), np.full(len(self.diag), math.log(1e18))
        rows = np.arange(len(self.diag))
        for _ in range(3):
            grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 65)
            enough = recurrence.mass(1 + np.exp(grid)) >= 1 / delta**2
            enough[:, -1] = True
            first = enough.argmax(1)
            low, high = grid[rows, np.maximum(first - 1, 0)], grid[rows, first]
        return torch.from_numpy(recurrence.ritz * (1 + np.exp(high))).to(self.diag.device)

    def within(self, rtol: float, delta: float, noise: float) -> bool:
        """Whether `upper` is at most (1 + rtol) times the largest Ritz value, for all starts; cheaper than it."""
        recurrence = _Recurrence.of(self, self._top()[0], noise)
        return all(recurrence.exceeds(row, 1 + rtol, 1 / delta**2) for row in range(len(self.diag)))

    def _top(self) -> tuple[np.ndarray, np.ndarray]:
        diag, off = self.diag.cpu().numpy(), self.offdiag.cpu().numpy()
        if not (np.isfinite(diag).all() and np.isfinite(off).all()):
            raise NonFiniteError(
                "Lanczos met NaN or infinity: the operator's weights are not finite, or so large that A* A overflows; "
                "repair or rescale them."
            )
        last = diag.shape[1] - 1
        pairs = [
            scipy.linalg.eigh_tridiagonal(d, e[:last], select="i", select_range=(last, last))
            for d, e in zip(diag, off, strict=True)
        ]
        return np.array([values[0] for values, _ in pairs]), np.array([vectors[:, 0] for _, vectors in pairs])


def lanczos(
    gram: Callable[[Tensor], Tensor],
    start: Inexact[Tensor, "batch n"],
    steps: int,
    noise: float,
    done: Callable[[Krylov], bool],
    record: bool,
) -> Krylov:
    """Up to `steps` steps from `start`, stopping when `done` says so; it is asked every 8 steps, later every 16.

    A remainder below `noise` times the largest diagonal entry is rounding: the start lies in an invariant subspace, and
    zero vectors end that sequence. On CUDA, `record` replays the step as a recorded graph, if `gram` allows it.

    Cost: `steps` applications of G and two passes over the basis a step.
    """
    steps = min(steps, start.shape[1])
    process = _Process(gram, start, steps, noise)
    stage, replay = 0, process.step
    for k in range(1, steps + 1):
        if not (record and start.is_cuda):
            process.step(k)
        elif k <= stage:
            replay(stage)
        else:
            # Recorded for one size of the basis at a time; its unwritten vectors are zero and change nothing.
            stage = min(k + _STAGE, steps + 1)
            process.step(stage)
            replay = recorded(process.step, stage)
        if k % (8 if k <= 32 else 16) == 0 or k == steps:
            state = Krylov(process.diag[:, :k], process.offdiag[:, :k], process.basis[:, :k])
            if k == steps or done(state):
                return state
    raise AssertionError("unreachable: steps >= 1")


class _Process:
    """The buffers of a Lanczos process; `step` reads and writes nothing else, so that it can be recorded."""

    def __init__(self, gram: Callable[[Tensor], Tensor], start: Tensor, steps: int, noise: float) -> None:
        batch, n = start.shape
        self.gram, self.noise = gram, noise
        self.now = start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
        self.before = torch.zeros_like(self.now)
        self.basis = start.new_zeros(batch, steps + 1, n)
        self.basis[:, 0] = self.now
        self.diag = torch.zeros(batch, steps, dtype=torch.float64, device=start.device)
        self.offdiag = torch.zeros_like(self.diag)
        self.length = torch.zeros_like(torch.linalg.vector_norm(start[:, :1], dim=1, keepdim=True))
        self.peak = torch.zeros_like(self.length)
        self.count = torch.zeros(1, dtype=torch.int64, device=start.device)

    def step(self, rows: int) -> None:
        """One step; the first `rows` vectors of the basis must include all that are written."""
        w = self.gram(self.now)
        inner = torch.linalg.vecdot(self.now, w).unsqueeze(1)
        real = inner.real if inner.is_complex() else inner
        # The three-term recurrence first, so that one sweep over all earlier vectors leaves only rounding.
        w = torch.addcmul(w, inner, self.now, value=-1)
        w = torch.addcmul(w, self.length.to(w.dtype), self.before, value=-1)
        # Conjugating the vector, not the basis, which would be copied.
        known = self.basis[:, :rows]
        overlap = known @ w.conj().unsqueeze(-1)
        w = torch.baddbmm(w.unsqueeze(1), overlap.mH, known, alpha=-1).squeeze(1)
        torch.linalg.vector_norm(w, dim=1, keepdim=True, out=self.length)
        torch.maximum(self.peak, real, out=self.peak)
        alive = self.length > self.noise * self.peak
        self.before.copy_(self.now)
        torch.mul(w, torch.where(alive, self.length.reciprocal(), 0.0), out=self.now)
        self.diag.index_copy_(1, self.count, real.double())
        self.offdiag.index_copy_(1, self.count, self.length.double())
        self.count += 1
        self.basis.index_copy_(1, self.count, self.now.unsqueeze(1))


def overlap_quantile(n: int, failure: float, complex_: bool) -> float:
    """delta with P(|<b, x>| < delta) = failure for b uniform on the sphere of R^n (or C^n) and a fixed unit x."""
    if n == 1:
        return 1.0
    shape = (1.0, n - 1.0) if complex_ else (0.5, (n - 1) / 2)
    return math.sqrt(float(scipy.special.betaincinv(*shape, failure)))


def generator(seed: int, device: torch.device) -> torch.Generator:
    """A stream of its own: hashed, so that a seed also used to draw weights gives unrelated numbers."""
    digest = hashlib.sha256(f"lipkit.lanczos {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@final
@dataclass(frozen=True)
class _Recurrence:
    """The Lanczos polynomials p_j in units of the Ritz value, per start."""

    ritz: np.ndarray
    a: np.ndarray
    b: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, krylov: Krylov, ritz: np.ndarray, noise: float) -> "_Recurrence":
        scale = np.where(ritz > 0, ritz, 1.0)[:, None]
        a, off = krylov.diag.cpu().numpy() / scale, krylov.offdiag.cpu().numpy() / scale
        # Everything after a coefficient lost in rounding is noise: those steps do not count.
        ended = np.cumsum(off <= noise, axis=1)
        counts = np.concatenate([np.ones((len(a), 1), bool), ended[:, :-1] == 0], axis=1)
        return cls(ritz, a, np.maximum(off, noise), counts)

    def mass(self, t: np.ndarray) -> np.ndarray:
        """sum_j p_j(t)^2 for a grid of t per row, saturating far above any 1/delta^2."""
        before, now, total = np.zeros_like(t), np.ones_like(t), np.ones_like(t)
        previous = np.zeros((len(t), 1))
        for j in range(self.a.shape[1]):
            b = self.b[:, j, None]
            after = ((t - self.a[:, j, None]) * now - previous * before) / b
            before, now = now, np.clip(after, -1e120, 1e120)
            previous = b
            total = total + np.where(self.counts[:, j, None], now * now, 0.0)
        return total

    def exceeds(self, row: int, t: float, goal: float) -> bool:
        """Whether `mass` at one t reaches `goal`; plain floats, since arrays of one element are slower."""
        before, now, total, previous = 0.0, 1.0, 1.0, 0.0
        for a, b, counts in zip(self.a[row].tolist(), self.b[row].tolist(), self.counts[row].tolist(), strict=True):
            before, now = now, ((t - a) * now - previous * before) / b
            previous = b
            if counts:
                total += now * now
            if total >= goal or not counts:
                break
        return total >= goal
