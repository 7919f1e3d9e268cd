"""Lanczos on A* A with full reorthogonalisation, and what it proves with high probability."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.special
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import NonFiniteError


@final
@dataclass(frozen=True)
class Krylov:
    """k steps of Lanczos on positive semidefinite maps G, for a batch of starts.

    T = tridiag(offdiag, diag, offdiag) with `offdiag` including the last, k-th coefficient; `basis` holds k unit vectors.
    In terms of A this is the one-sided Golub-Kahan process: diag and offdiag are its alpha_j^2 + beta_{j-1}^2 and
    alpha_j beta_j.
    """

    diag: Float[Tensor, "batch k"]
    offdiag: Float[Tensor, "batch k"]
    basis: Inexact[Tensor, "batch k n"]

    def ritz(self) -> tuple[Float[Tensor, " batch"], Inexact[Tensor, "batch n"]]:
        """The largest Ritz value of G (from below) and its unit vector."""
        k = self.diag.shape[1]
        t = torch.diag_embed(self.diag)
        if k > 1:
            t = t + torch.diag_embed(self.offdiag[:, : k - 1], 1) + torch.diag_embed(self.offdiag[:, : k - 1], -1)
        if not bool(torch.isfinite(t).all()):
            raise NonFiniteError(
                "Lanczos met NaN or infinity: the operator's weights are not finite, or so large that A* A overflows; "
                "repair or rescale them."
            )
        values, vectors = torch.linalg.eigh(t.cpu())
        top = vectors[:, :, -1].to(self.basis)
        return values[:, -1].to(self.diag.device), (top.unsqueeze(1) @ self.basis).squeeze(1)

    def upper(self, ritz: Float[Tensor, " batch"], delta: float, noise: float) -> Float[Tensor, " batch"]:
        """The a-posteriori upper bound of the largest eigenvalue of G, given |<start, x_1>| >= delta.

        With v_j = p_j(G) start, orthonormality gives sum_{j<=k} p_j(lambda_1)^2 <= 1/delta^2; the sum grows beyond the
        largest Ritz value, so its root there bounds lambda_1, for every k at once. Coefficients below the rounding
        `noise` (relative to the Ritz value) are raised to it, which only raises the root, and end the recurrence.
        """
        return _root(self.diag.cpu().numpy(), self.offdiag.cpu().numpy(), ritz.cpu().numpy(), delta, noise).to(
            self.diag.device
        )


def lanczos(
    gram: Callable[[Tensor], Tensor],
    start: Inexact[Tensor, "batch n"],
    steps: int,
    noise: float,
    every: int,
    done: Callable[[Krylov], bool],
) -> Krylov:
    """Up to `steps` steps from `start`, stopping when `done` says so at a multiple of `every`.

    A remainder below `noise` times the largest diagonal entry is rounding: the start lies in an invariant subspace, and
    zero vectors end that sequence.

    Cost: `steps` applications of G and 4 passes over the basis a step (classical Gram-Schmidt, twice is enough).
    """
    steps = min(steps, start.shape[1])
    basis = start.new_zeros(start.shape[0], steps + 1, start.shape[1])
    diag = torch.zeros(start.shape[0], steps, dtype=torch.float64, device=start.device)
    offdiag = torch.zeros_like(diag)
    basis[:, 0] = start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
    for j in range(steps):
        w = gram(basis[:, j])
        known = basis[:, : j + 1]
        for sweep in range(2):
            overlap = known.conj() @ w.unsqueeze(-1)
            w = w - (overlap.mT @ known).squeeze(1)
            if sweep == 0:
                diag[:, j] = overlap[:, j, 0].real
        length = torch.linalg.vector_norm(w, dim=1, keepdim=True)
        offdiag[:, j] = length[:, 0]
        alive = length > noise * diag.amax(1, keepdim=True)
        basis[:, j + 1] = torch.where(alive, w / torch.where(alive, length, 1.0), 0.0)
        k = j + 1
        if k % every == 0 or k == steps:
            state = Krylov(diag[:, :k], offdiag[:, :k], basis[:, :k])
            if k == steps or done(state):
                return state
    raise AssertionError("unreachable: steps >= 1")


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


def _root(diag: np.ndarray, offdiag: np.ndarray, ritz: np.ndarray, delta: float, noise: float) -> Tensor:
    scale = np.where(ritz > 0, ritz, 1.0)[:, None]
    a, b = diag / scale, np.maximum(offdiag / scale, noise)
    # Everything after a coefficient lost in rounding is noise: those steps do not count.
    ended = np.cumsum(offdiag / scale <= noise, axis=1)
    counts = np.concatenate([np.ones((len(a), 1), bool), ended[:, :-1] == 0], axis=1)
    low, high = np.full(len(a), math.log(1e-17)), np.full(len(a), math.log(1e18))
    for _ in range(5):
        grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 33)
        enough = _mass(1 + np.exp(grid), a, b, counts) >= 1 / delta**2
        enough[:, -1] = True
        first = enough.argmax(1)
        rows = np.arange(len(a))
        low, high = grid[rows, np.maximum(first - 1, 0)], grid[rows, first]
    return torch.from_numpy(ritz * (1 + np.exp(high)))


def _mass(t: np.ndarray, a: np.ndarray, b: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """sum_j p_j(t)^2 for a grid of t per row, saturating far above any 1/delta^2."""
    before, now = np.zeros_like(t), np.ones_like(t)
    total = np.ones_like(t)
    previous = np.zeros(len(a))
    for j in range(a.shape[1]):
        after = ((t - a[:, j, None]) * now - previous[:, None] * before) / b[:, j, None]
        before, now = now, np.clip(after, -1e120, 1e120)
        previous = b[:, j]
        total = total + np.where(counts[:, j, None], now**2, 0.0)
    return total
