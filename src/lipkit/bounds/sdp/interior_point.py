"""An interior-point method for the semidefinite programs of networks."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from time import monotonic
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.dense_network import DenseNetwork
from lipkit.bounds.sdp.network_program import fold_point, start_point
from lipkit.bounds.sdp.primal_dual import improve_both_sides
from lipkit.bounds.sdp.program import Factor, Multipliers, Program, couplings, factorise, parts_of, traces
from lipkit.errors import ArgumentError, NotProvenError

# How well halves of a network are solved, in the constant.
_LOOSE = 0.2
# By how much mu is reduced in one step, tried in this order.
_REDUCTIONS = (100.0, 10.0, 4.0, 2.0, 1.5, 1.2)
# Up to this many numbers P is kept as one matrix, from points to entries.
_SMALL = 2**20
# From so many variables on, the dual is followed too.
_LARGE = 1100
# A point whose Newton decrement is below this is central enough to go on.
_CENTRAL = 0.8
# By how much mu is enlarged after steps of both sides.
_BACK = 100.0
# A share of the start's rho that counts as zero.
_NOTHING = 1e-60
# Steps that move a logarithm further than this are cut first: the model is not valid so far away.
_FAR = 5.0


class Solver(ABC):
    """A way to find good multipliers. What it returns is never trusted: any multipliers give a bound, once verified."""

    def find(self, network: DenseNetwork, program: Program, multipliers: Multipliers) -> Float64[Tensor, " groups"]:
        """A point of the program of `network`, from a start that the solver chooses: by default the norms."""
        start = fold_point(network, program, multipliers)
        return self.solve(program, start) if program.groups else start

    @abstractmethod
    def solve(self, program: Program, start: Float64[Tensor, " groups"]) -> Float64[Tensor, " groups"]:
        """A point (rho, tau), nearly feasible and nearly optimal; `start` is strictly feasible."""


@final
@dataclass(frozen=True)
class InteriorPoint(Solver):
    """Newton's method on  rho / mu - log det P(rho, tau)  in the logarithms of rho and tau, for falling mu.

    In the logarithms the path of minima is nearly straight while rho is far from the optimum. On it rho is within n mu
    of the optimum (n variables); it stops at n mu <= 2 `rtol` rho, which is `rtol` in the constant, or where rounding
    allows no more progress, or after `steps` steps or `budget` seconds. The Hessian is dense in the multipliers and has
    a closed form; P and its inverse use that a feed-forward network couples neighbouring layers only. From a thousand
    variables on, steps of the program and its dual together come first: see `primal_dual`.

    Cost: 30 to 130 steps of about N^3 / 3 + 4 n^2 w operations each, for N multipliers and layers of width w.
    """

    rtol: float = 1e-6
    steps: int = 400
    budget: float | None = None

    def __post_init__(self) -> None:
        if not 1e-9 <= self.rtol < 1:
            raise ArgumentError(f"InteriorPoint.rtol must lie in [1e-9, 1), got {self.rtol}.")
        if self.budget is not None and not self.budget > 0:
            raise ArgumentError(f"InteriorPoint.budget must be a number > 0, or None, got {self.budget}.")

    def __str__(self) -> str:
        limit = "" if self.budget is None else f", at most {self.budget:.3g} s"
        return f"interior point, rtol {self.rtol:g}{limit}"

    def find(self, network: DenseNetwork, program: Program, multipliers: Multipliers) -> Float64[Tensor, " groups"]:
        """From the best start there is: that of a large network takes the same solver to its halves, roughly.

        The budget is for the start and the whole together, half of it for the start.
        """
        if not program.groups:
            return fold_point(network, program, multipliers)
        if self.budget is None:
            return self.solve(program, start_point(network, program, multipliers, self.rougher(None).find))
        deadline = monotonic() + self.budget
        start = start_point(network, program, multipliers, self.rougher(self.budget / 4).find)
        # The clock is looked at after a step; none is left where the start took all the time.
        return replace(self, budget=max(deadline - monotonic(), 1e-9)).solve(program, start)

    def rougher(self, budget: float | None) -> "InteriorPoint":
        """The same solver for half of a network: better is worth nothing, as the product of halves is loose by more."""
        return replace(self, rtol=max(_LOOSE, self.rtol), budget=budget)

    def solve(self, program: Program, start: Float64[Tensor, " groups"]) -> Float64[Tensor, " groups"]:
        deadline = math.inf if self.budget is None else monotonic() + self.budget
        small = program.size**2 * program.groups <= _SMALL
        search = _Search(
            program,
            parts_of(program),
            program.matrix(torch.zeros_like(start)),
            program.columns() if small else None,
        )
        point, factor = start, search.factor(start)
        if factor is None:
            raise NotProvenError(
                "The multipliers to start from are not feasible in float64: the weights of the network are too "
                "ill-conditioned; use LipLT."
            )
        # A network may be constant without showing it, and then there is no optimum.
        mu, boldness, floor = float(start[0]) / program.size, 0, _NOTHING * float(start[0])
        if program.size > _LARGE:
            pair = improve_both_sides(program, start, self.rtol, deadline)
            # Its point is near the border, where there are few digits; the path is easier to find further up.
            point, mu = pair.point, min(mu, _BACK * pair.mu) if pair.mu > 0 else mu
            factor = search.factor(point)
        for _ in range(self.steps):
            if monotonic() > deadline or factor is None:
                return point
            step = _newton(program, point, factor, mu)
            if step is None:
                return point
            if step.decrement > _CENTRAL:
                found = search.along(point, factor, step, mu)
                if found is None:
                    return point
                point, factor = found
            elif mu * program.size <= 2 * self.rtol * float(point[0]) or float(point[0]) <= floor:
                return point
            else:
                # Where a small step was needed last time, a large one will hardly do now.
                found = search.ahead(point, step, max(boldness - 1, 0))
                if found is None:
                    mu, boldness = mu / _REDUCTIONS[-1], len(_REDUCTIONS) - 1
                else:
                    point, factor, boldness = found
                    mu = mu / _REDUCTIONS[boldness]
        return point


@final
@dataclass(frozen=True, eq=False)
class _Step:
    """In the logarithms: the Newton step for mu, its decrement, and the derivative of the path by log mu."""

    center: Tensor
    path: Tensor
    decrement: float


def _newton(program: Program, point: Tensor, factor: Factor, mu: float) -> _Step | None:
    inverse = factor.inverse()
    gradient, hessian = traces(program, inverse), couplings(program, inverse, inverse)
    cost = torch.zeros_like(point)
    cost[0] = point[0] / mu
    slope = cost - gradient * point
    # The Hessian in the logarithms, with a diagonal of about 1; in place, as it is large.
    scale = 1 / (hessian.diagonal().sqrt() * point)
    hessian.mul_(point * scale).mul_((point * scale)[:, None])
    bend = slope * scale**2
    hessian.diagonal().add_(bend + 1e-13)
    chol, info = torch.linalg.cholesky_ex(hessian)
    if int(info):
        # Not convex here: without what the logarithms take away it is.
        hessian.diagonal().sub_(bend.clamp(max=0))
        chol, info = torch.linalg.cholesky_ex(hessian)
        if int(info):
            return None
    solved = torch.cholesky_solve(torch.stack([-slope, cost], 1) * scale[:, None], chol) * scale[:, None]
    center, path = solved.unbind(1)
    square = float(-slope @ center)
    return _Step(center, path, math.sqrt(square)) if square >= 0 else None


@final
@dataclass(frozen=True, eq=False)
class _Search:
    """Steps that stay inside the feasible set."""

    program: Program
    parts: tuple[slice, ...]
    constant: Tensor
    columns: Tensor | None

    def factor(self, point: Tensor) -> Factor | None:
        linear = self.program.linear(point) if self.columns is None else self.columns @ point
        return factorise(linear.view_as(self.constant).add_(self.constant), self.parts)

    def ahead(self, point: Tensor, step: _Step, first: int) -> tuple[Tensor, Factor, int] | None:
        """Along the path to the smallest mu that can be reached: straight in the logarithms, or in the numbers."""
        for i, reduction in enumerate(_REDUCTIONS[first:], start=first):
            for straight in (True, False):
                # A third further must be feasible as well, to keep away from the boundary.
                far, near = (_move(point, step, reduction, more, straight) for more in (4 / 3, 1.0))
                if self.factor(far) is None:
                    continue
                factor = self.factor(near)
                if factor is not None:
                    return near, factor, i
        return None

    def along(self, point: Tensor, factor: Factor, step: _Step, mu: float) -> tuple[Tensor, Factor] | None:
        """To about the lowest point of the barrier along a Newton step; None where rounding allows no progress."""

        def tried(length: float) -> tuple[float, Tensor, Factor | None]:
            there = point * torch.exp(length * step.center)
            found = self.factor(there)
            return (math.inf if found is None else float(there[0]) / mu - found.log_det), there, found

        base = float(point[0]) / mu - factor.log_det
        length = min(1.0, _FAR / float(step.center.abs().max()))
        best = tried(length)
        ratio = 2.0 if best[0] < base and step.decrement > 1 else 0.5
        for _ in range(50):
            if best[0] < base and ratio == 0.5 and step.decrement <= 1:
                break
            other = tried(length * ratio)
            if best[0] < base and other[0] >= best[0]:
                break
            length, best = length * ratio, other
        value, there, found = best
        return (there, found) if found is not None and value < base else None


def _move(point: Tensor, step: _Step, reduction: float, more: float, straight: bool) -> Tensor:
    if straight:
        return point * torch.exp(step.center - more * math.log(reduction) * step.path)
    return point * (1 + step.center - more * (1 - 1 / reduction) * step.path)
