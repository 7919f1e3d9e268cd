"""A mixed-integer program under construction: variables with bounds, linear rows, and how far a solver may be off."""

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np
import scipy

from lipkit.errors import ArgumentError

# A linear expression: coefficients by variable, and a constant.
Terms = list[tuple[int, float]]
# HiGHS accepts reduced costs and rows that are wrong by this much.
_TOLERANCE = 1e-7


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """The answer of a solver: the best point it has, and that no point has a larger objective than `upper`."""

    point: np.ndarray | None
    upper: float


@final
@dataclass(eq=False)
class Model:
    """Maximise a linear function of bounded variables, some of them integers, under two-sided rows."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def variable(self, low: float, high: float, integer: bool = False) -> int:
        """A new variable in [low, high], both finite."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ArgumentError(f"A variable of the program needs finite bounds, got [{low}, {high}].")
        self.low.append(low)
        self.high.append(high)
        self.integer.append(integer)
        return len(self.low) - 1

    def binary(self) -> int:
        """A new variable in {0, 1}."""
        return self.variable(0.0, 1.0, integer=True)

    def between(self, terms: Terms, low: float = -math.inf, high: float = math.inf) -> None:
        """low <= sum of the terms <= high."""
        self.rows.append((terms, low, high))

    def product(self, binary: int, factor: int) -> int:
        """A variable that equals binary * factor."""
        low, high = self.low[factor], self.high[factor]
        found = self.variable(min(low, 0.0), max(high, 0.0))
        self.between([(found, 1.0), (binary, -low)], low=0.0)
        self.between([(found, 1.0), (binary, -high)], high=0.0)
        self.between([(found, 1.0), (factor, -1.0), (binary, -high)], low=-high)
        self.between([(found, 1.0), (factor, -1.0), (binary, -low)], high=-low)
        return found

    def slack(self) -> float:
        """How far the solver's bound may lie below the truth if its dual solution is right up to its tolerance.

        A dual solution that violates each sign condition by at most tau bounds the maximum up to tau times the sum of
        the ranges of all variables and all rows.
        """
        low, high = np.array(self.low), np.array(self.high)
        total = float((high - low).sum())
        for terms, _, _ in self.rows:
            total += sum(abs(c) * (high[i] - low[i]) for i, c in terms)
        return _TOLERANCE * total

    def maximise(self, objective: Terms, seconds: float) -> Outcome:
        """Solve with HiGHS for at most so many seconds."""
        cost = np.zeros(len(self.low))
        for i, c in objective:
            cost[i] -= c
        entries = [(r, i, c) for r, (terms, _, _) in enumerate(self.rows) for i, c in terms]
        at_row, at_column, values = zip(*entries, strict=True)
        shape = (len(self.rows), len(self.low))
        matrix = scipy.sparse.csr_matrix((values, (at_row, at_column)), shape=shape)
        sides = np.array([row[1] for row in self.rows]), np.array([row[2] for row in self.rows])
        found = scipy.optimize.milp(
            cost,
            integrality=np.array(self.integer, dtype=int),
            # scipy's annotations say float where its documentation says array.
            bounds=scipy.optimize.Bounds(np.array(self.low), np.array(self.high)),  # pyright: ignore[reportArgumentType]
            constraints=scipy.optimize.LinearConstraint(matrix, *sides),  # pyright: ignore[reportArgumentType]
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        dual: float | None = found.mip_dual_bound
        return Outcome(found.x, math.inf if dual is None or not math.isfinite(dual) else self.slack() - dual)
