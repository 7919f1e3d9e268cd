"""Newton's method on a semidefinite program and its dual at once, for programs of many layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.program import Factor, Program, couplings, factorise, parts_of, traces

_STEPS = 60
# How much of the way to the boundary is taken.
_SAFE = 0.95
# Where even the best step is shorter than this, aim at the center instead.
_SHORT = 0.1
# What the dual may miss its equations by, relative to rho, once all else is done.
_MISSED = 1e-3
# Steps of Lanczos for the length of a step; what they leave unseen is within the safety above.
_LANCZOS = 30


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """A strictly feasible point (rho, tau), and mu = <X, P> / n, which bounds how far rho can still fall by n mu."""

    point: Float64[Tensor, " groups"]
    mu: float


def improve_both_sides(program: Program, start: Float64[Tensor, " groups"], rtol: float, deadline: float) -> Pair:
    """Points (rho, tau) with P > 0 and matrices X > 0 towards  X P = 0, tr(X E) = 1, tr(X Q_g) = 0.

    Directions are those of Helmberg, Kojima and Monteiro, from the equations
        sum_h tr(Q_g X Q_h P^-1) d_h = sigma mu tr(P^-1 Q_g) - c_g - (second order),
    with a step to sigma = 0 first, which chooses sigma and the second order (Mehrotra). From a start within a small
    factor of the optimum about 13 steps suffice, whatever the depth; the barrier alone takes hundreds there.
    It ends at n mu <= 2 `rtol` rho, at `deadline` (monotonic seconds), or where rounding allows no more: the point is
    strictly feasible all the way, and that is all that is promised of it.

    Cost: a step is one Cholesky factorisation each of N multipliers and of n variables, and about 20 n^2 w operations
    for layers of width w.
    """
    mu = float(start[0]) / program.size
    state = _State.at(program, start, mu)
    if state is None:
        return Pair(start, mu)
    for _ in range(_STEPS):
        if monotonic() > deadline or state.done(rtol):
            break
        following = state.stepped()
        if following is None:
            break
        state = following
    return Pair(state.point, state.mu)


@final
@dataclass(frozen=True, eq=False)
class _State:
    """One iterate: the point, its factor and inverse, and the dual matrix X with its Cholesky factor."""

    program: Program
    point: Tensor
    factor: Factor
    inverse: Tensor
    dual: Tensor
    chol: Tensor

    @classmethod
    def at(cls, program: Program, point: Tensor, mu: float) -> "_State | None":
        factor = factorise(program.matrix(point), parts_of(program))
        return None if factor is None else _iterate(program, point, factor, mu * factor.inverse())

    @property
    def mu(self) -> float:
        return self._product(self.dual, self.point) / self.program.size

    def done(self, rtol: float) -> bool:
        cost = torch.zeros_like(self.point)
        cost[0] = 1.0
        missed = float(((cost - traces(self.program, self.dual)) * self.point).abs().max())
        rho = float(self.point[0])
        return self.mu * self.program.size <= 2 * rtol * rho and missed <= _MISSED * rho

    def stepped(self) -> "_State | None":
        """The next iterate; None where rounding allows none."""
        equations = couplings(self.program, self.dual, self.inverse)
        scale = equations.diagonal().rsqrt()
        equations.mul_(scale).mul_(scale[:, None]).diagonal().add_(1e-14)
        chol, info = torch.linalg.cholesky_ex(equations)
        if int(info):
            return None

        def solved(right: Tensor) -> Tensor:
            return torch.cholesky_solve((right * scale)[:, None], chol)[:, 0] * scale

        cost = torch.zeros_like(self.point)
        cost[0] = 1.0
        mu = self.mu
        if not mu > 0:
            return None
        first = solved(-cost)
        first_dual = -self.dual - self._turn(self.dual, first)
        long, wide = self._length(first), self._dual_length(first_dual)
        ahead = self._product(self.dual + wide * first_dual, self.point + long * first) / self.program.size
        sigma = min(max((max(ahead, 0.0) / mu) ** 2, 1e-6), 1.0) if min(long, wide) > _SHORT else 0.5
        second = self._turn(first_dual, first)
        target = sigma * mu * traces(self.program, self.inverse) - cost - traces(self.program, second)
        step = solved(target)
        if not bool(torch.isfinite(step).all()):
            return None
        dual_step = sigma * mu * self.inverse - self.dual - self._turn(self.dual, step) - second
        point = self.point + min(1.0, _SAFE * self._length(step)) * step
        factor = self._factor(point)
        if factor is None:
            return None
        length = min(1.0, _SAFE * self._dual_length(dual_step))
        # The length is an estimate from inside the spectrum, so it may be too long.
        for share in (1.0, 0.8, 0.4):
            dual = self.dual + share * length * dual_step
            found = _iterate(self.program, point, factor, dual)
            if found is not None:
                return found
        return None

    def _factor(self, point: Tensor) -> Factor | None:
        return factorise(self.program.matrix(point), self.factor.parts)

    def _product(self, dual: Tensor, point: Tensor) -> float:
        output = self.program.output
        constant = ((output.matrix @ dual[output.span, output.span]) * output.matrix).sum()
        return float(traces(self.program, dual) @ point - constant)

    def _turn(self, left: Tensor, step: Tensor) -> Tensor:
        """The symmetric part of P^-1 dP A, for a symmetric A."""
        change = self.program.linear(step)
        parts = self.factor.parts
        turned = torch.empty_like(left)
        for i, part in enumerate(parts):
            # P couples neighbours only.
            near = slice(parts[max(i - 1, 0)].start, parts[min(i + 1, len(parts) - 1)].stop)
            torch.mm(change[part, near], left[near], out=turned[part])
        found = solve(self.factor, turned)
        return found.add_(found.mT.clone()).mul_(0.5)

    def _length(self, step: Tensor) -> float:
        """How far P > 0 along a step, at most 1 / _SAFE; from below, within a fifth."""
        most = 1 / _SAFE
        if self._factor(self.point + most * step) is not None:
            return most
        return _largest(lambda length: self._factor(self.point + length * step) is not None, most)

    def _dual_length(self, step: Tensor) -> float:
        """How far X > 0 along a step, at most 1 / _SAFE, about: -1 / lambda_min(L^-1 dX L^-*)."""

        def applied(vector: Tensor) -> Tensor:
            inner = torch.linalg.solve_triangular(self.chol.mT, vector[:, None], upper=True)
            return torch.linalg.solve_triangular(self.chol, step @ inner, upper=False)[:, 0]

        least = _least_eigenvalue(applied, len(step))
        return min(1 / _SAFE, -1 / least) if least < 0 else 1 / _SAFE


def _iterate(program: Program, point: Tensor, factor: Factor, dual: Tensor) -> _State | None:
    """The iterate, if X is positive definite; a little of the identity is added where only rounding says no."""
    for repair in (0.0, 1e-14, 1e-12, 1e-10):
        size = dual.diagonal().clamp(min=0)
        mended = dual + torch.diag(repair * size) if repair else dual
        chol, info = torch.linalg.cholesky_ex(mended)
        if not int(info):
            return _State(program, point, factor, factor.inverse(), mended, chol)
    return None


def solve(factor: Factor, right: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
    """P^-1 B, by substitution down and up."""
    found = right.clone()
    for before, part, link in zip(factor.parts, factor.parts[1:], factor.links, strict=False):
        found[part] -= link.mT @ found[before]
    for i in reversed(range(len(factor.parts))):
        part = factor.parts[i]
        found[part] = torch.cholesky_solve(found[part], factor.pivots[i])
        if i + 1 < len(factor.parts):
            found[part] -= factor.links[i] @ found[factor.parts[i + 1]]
    return found


def _largest(allowed: Callable[[float], bool], most: float) -> float:
    """A length that is allowed, within a fifth of one that is not; 0 if there is none above 1e-9."""
    low, high = 0.0, most
    while high > 1e-9 and (low == 0.0 or high > 1.2 * low):
        middle = high / 2 if low == 0.0 else math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _least_eigenvalue(applied: Callable[[Tensor], Tensor], size: int) -> float:
    """About the smallest eigenvalue of a symmetric map, by Lanczos, orthogonalised twice."""
    start = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    basis = [start / torch.linalg.vector_norm(start)]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(_LANCZOS, size)):
        image = applied(basis[-1])
        diagonal.append(basis[-1] @ image)
        known = torch.stack(basis)
        before = torch.linalg.vector_norm(image)
        for _ in range(2):
            image = image - known.mT @ (known @ image)
        beside.append(torch.linalg.vector_norm(image))
        # What is left is rounding: the values found so far are all there are.
        if not bool(beside[-1] > 1e-10 * before):
            break
        basis.append(image / beside[-1])
    off = torch.stack(beside[: len(diagonal) - 1]) if len(diagonal) > 1 else torch.zeros(0, dtype=torch.float64)
    return float(torch.linalg.eigvalsh(torch.diag(torch.stack(diagonal)) + torch.diag(off, 1) + torch.diag(off, -1))[0])
