"""Lanczos on A* A with full reorthogonalisation, and what it proves with high probability."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError
from lipkit.norms.matrix_free.cuda_graphs import record_graph

# How many steps are replayed before the basis they sweep over is enlarged.
_STAGE = 63


@final
@dataclass(frozen=True)
class Krylov:
    """k steps of Lanczos on positive semidefinite maps G, for a batch of starts.

    T = tridiag(offdiag, diag, offdiag) with `offdiag` including the last, k-th coefficient; `basis` holds unit vectors.
    In terms of A this is the one-sided Golub-Kahan process: diag and offdiag are its alpha_j^2 + beta_{j-1}^2 and
    alpha_j beta_j.
    """

    diag: np.ndarray
    offdiag: np.ndarray
    basis: Inexact[Tensor, "batch k n"]

    def ritz(self) -> Inexact[Tensor, "batch n"]:
        """The unit vector of the largest Ritz value of G."""
        top = torch.from_numpy(self._top()[1]).to(self.basis)
        return (top.unsqueeze(1) @ self.basis).squeeze(1)

    def upper(self, delta: float, noise: float) -> Float[Tensor, " batch"]:
        """The a-posteriori upper bound of the largest eigenvalue of G, given |<start, x_1>| >= delta.

        With v_j = p_j(G) start, orthonormality gives sum_{j<=k} p_j(lambda_1)^2 <= 1/delta^2; the sum grows beyond the
        largest Ritz value, so its root there bounds lambda_1, for every k at once. Coefficients below the rounding
        `noise` (relative to the Ritz value) are raised to it, which only raises the root, and end the recurrence.
        """
        ritz = self._top()[0]
        found = [
            value * (1 + _root(_Recurrence.of(a, b, value, noise), 1 / delta**2))
            for a, b, value in zip(self.diag, self.offdiag, ritz.tolist(), strict=True)
        ]
        return torch.tensor(found, dtype=torch.float64, device=self.basis.device)

    def within(self, rtol: float, delta: float, noise: float) -> bool:
        """Whether `upper` is at most (1 + rtol) times the largest Ritz value, for all starts; cheaper than `upper`."""
        rows = zip(self.diag, self.offdiag, self._top()[0].tolist(), strict=True)
        return all(_Recurrence.of(a, b, value, noise).reaches(1 + rtol, 1 / delta**2) for a, b, value in rows)

    def _top(self) -> tuple[np.ndarray, np.ndarray]:
        if not (np.isfinite(self.diag).all() and np.isfinite(self.offdiag).all()):
            raise NonFiniteError(
                "Lanczos met NaN or infinity: the operator's weights are not finite, or so large that A* A overflows; "
                "repair or rescale them."
            )
        last = self.diag.shape[1] - 1
        pairs = [
            scipy.linalg.eigh_tridiagonal(d, e[:last], select="i", select_range=(last, last))
            for d, e in zip(self.diag, self.offdiag, strict=True)
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
    """Up to `steps` steps from `start`, stopping when `done` says so; it is asked every few steps.

    A remainder below `noise` times the largest diagonal entry is rounding: the start lies in an invariant subspace, and
    zero vectors end that sequence. On CUDA, `record` replays the step as a recorded graph, if `gram` allows it.

    Cost: `steps` applications of G and two passes over the basis a step.
    """
    steps = min(steps, start.shape[1])
    record = record and start.is_cuda
    process = _Process(gram, start, steps, noise, record)
    stage, replay = 0, process.step
    for k in range(1, steps + 1):
        if not record:
            process.step(k)
        elif k <= stage:
            replay(stage)
        else:
            # Recorded for one size of the basis at a time; its unwritten vectors are zero and change nothing.
            stage = min(k + _STAGE, steps + 1)
            process.step(stage)
            replay = record_graph(process.step, stage, start.device)
        # On CUDA asking waits for the device; elsewhere it costs less than a step.
        if k % (4 if not start.is_cuda else 8 if k <= 32 else 16) == 0 or k == steps:
            diag, offdiag = process.coefficients[:, :, :k].cpu().numpy()
            assert int(process.count) == k, "a recorded step was not replayed"
            state = Krylov(diag, offdiag, process.basis[:, :k])
            if k == steps or done(state):
                return state
    raise AssertionError("unreachable: steps >= 1")


class _Process:
    """The buffers of a Lanczos process; `step` reads and writes nothing else, so that it can be recorded.

    Only a recording reads vectors that are not written yet, and needs them to be zero.
    """

    def __init__(self, gram: Callable[[Tensor], Tensor], start: Tensor, steps: int, noise: float, zero: bool) -> None:
        batch, n = start.shape
        self.gram, self.noise = gram, noise
        self.now = start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
        self.before = torch.zeros_like(self.now)
        self.basis = (start.new_zeros if zero else start.new_empty)((batch, steps + 1, n))
        self.basis[:, 0] = self.now
        self.coefficients = torch.zeros(2, batch, steps, dtype=torch.float64, device=start.device)
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
        self.coefficients.index_copy_(2, self.count, torch.stack([real, self.length]).double())
        self.count += 1
        self.basis.index_copy_(1, self.count, self.now.unsqueeze(1))


def overlap_quantile(n: int, failure: float, complex_: bool) -> float:
    """delta with P(|<b, x>| < delta) = failure for b uniform on the sphere of R^n (or C^n) and a fixed unit x."""
    if n == 1:
        return 1.0
    shape = (1.0, n - 1.0) if complex_ else (0.5, (n - 1) / 2)
    return math.sqrt(float(scipy.special.betaincinv(*shape, failure)))


def gaussian(seed: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal numbers (complex where `like` is) in float64 from a seed of up to 128 bits.

    torch's generator on the CPU keeps 32 bits of its seed: too few for a failure probability of 1e-9. The seed is
    hashed, so that a seed also used to draw weights gives unrelated numbers.
    """
    digest = hashlib.sha256(f"lipkit start {seed}".encode()).digest()
    source = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    draw = torch.from_numpy(source.standard_normal((*shape, 2) if like.is_complex() else shape))
    return (torch.view_as_complex(draw) if like.is_complex() else draw).to(like.device)


@final
@dataclass(frozen=True)
class _Recurrence:
    """The Lanczos polynomials p_j of one start, in units of its Ritz value."""

    a: list[float]
    b: list[float]

    @classmethod
    def of(cls, diag: np.ndarray, offdiag: np.ndarray, ritz: float, noise: float) -> "_Recurrence":
        # A Ritz value of rounding errors may be zero or negative; the norm is then in the slack added later.
        unit = ritz if ritz > 0 else 1.0
        a, b = (diag / unit).tolist(), (offdiag / unit).tolist()
        # The first coefficient lost in rounding is the last that counts, raised to what rounding makes of it.
        end = next((j + 1 for j, value in enumerate(b) if value <= noise), len(b))
        return cls(a[:end], [max(value, noise) for value in b[:end]])

    def reaches(self, t: float, goal: float) -> bool:
        """Whether sum_j p_j(t)^2 >= goal; plain floats, because arrays of one element are slower."""
        before, now, total, previous = 0.0, 1.0, 1.0, 0.0
        for a, b in zip(self.a, self.b, strict=True):
            before, now = now, ((t - a) * now - previous * before) / b
            previous = b
            total += now * now
            # Stopping here also keeps the polynomials from overflowing: the sum only grows.
            if total >= goal:
                return True
        return False


def _root(recurrence: _Recurrence, goal: float) -> float:
    """The least x, up to a tenth of a percent above, for which the sum at t = 1 + x reaches `goal`."""
    low, high = math.log(1e-17), math.log(1e18)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if recurrence.reaches(1 + math.exp(middle), goal) else (middle, high)
    return math.exp(high)
