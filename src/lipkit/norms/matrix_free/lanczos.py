"""Randomised Lanczos: an upper bound with a stated failure probability, for any operator that can be applied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import scipy
import torch
from torch import Tensor

from lipkit._runtime import draw, refuse_late
from lipkit.bound import Bound, Kind, Witness
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.linops import LinearOperator, stack
from lipkit.norms._base import Norm, positive_int
from lipkit.norms.matrix_free._base import Iteration
from lipkit.norms.matrix_free.cuda_graphs import recordable
from lipkit.norms.matrix_free.krylov import lanczos, overlap_quantile
from lipkit.norms.svd import tie_gradient
from lipkit.rounding.float64 import log_up
from lipkit.rounding.slacks import UNIT

# On a CPU vectors of this length fill a core by themselves, and grouped convolutions are slower than single ones.
_LONG = 2**12


@final
@dataclass(frozen=True)
class Lanczos(Norm):
    """Two-sided bound of the spectral norm by Lanczos on A* A from a random start b.

    With delta the `failure` quantile of |<b, x_1>| and p_j the Lanczos polynomials, the root t > theta_k of
        sum_{j=0..k} p_j(t)^2 = 1/delta^2
    bounds sigma_1^2. It rests on one event, |<b, x_1>| >= delta, so it holds at every k at once and stopping early,
    when the two sides are within `rtol`, is free. The start is drawn from fresh entropy after the operator is fixed;
    the drawn seed is on record in the bound's method. With a `seed` given beforehand, or a warm start, the weights may
    depend on the start and the result is LOWER.

    Guarantee: UPPER with confidence 1 - failure, the proven ||A v|| beside it; LOWER with `seed` or `state`.
    Rounding: delta is halved, which covers errors in <b, x_1> of up to half its size; recurrence coefficients below
    16 sqrt(depth + 16) 2^-53 are not used, and that much of the operator's magnitude is added; a `failure` too small
    for it is refused. Errors of an inner product of length d are taken as sqrt(d), the probabilistic model of Higham
    and Mary 2019, which fits the kind of statement made here; all other methods count the worst case.
    Cost: at most `steps` applications of A and A*, and (steps + 1) vectors of the smaller side.
    References: Kuczynski and Wozniakowski 1992; Hochstenbach 2013. The form used here is derived in docs/methods.md.
    """

    steps: int = 100
    rtol: float = 1e-2
    failure: float = 1e-9
    seed: int | None = None
    memory: int = 2**32

    def __post_init__(self) -> None:
        positive_int("Lanczos.steps", self.steps)
        positive_int("Lanczos.memory", self.memory)
        if not 0 < self.failure < 1:
            raise ArgumentError(f"Lanczos.failure must lie in (0, 1), got {self.failure}.")
        if not 0 <= self.rtol < math.inf:
            raise ArgumentError(f"Lanczos.rtol must be a finite number >= 0, got {self.rtol}.")

    def __str__(self) -> str:
        return f"Lanczos, at most {self.steps} steps, seed {self.seed}"

    def loosened(self, factor: float, /) -> Norm:
        """The same with `factor` times the `rtol`, at most a quarter."""
        return replace(self, rtol=max(self.rtol, min(factor * self.rtol, 0.25)))

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        size = min(ops[0].in_size, ops[0].out_size)
        each = 8 * size * (min(self.steps, size) + 1)
        if each > self.memory:
            raise TooLargeError(
                f"{self.steps} Lanczos vectors of {size} entries need {each / 2**30:.1f} GiB, more than the allowed "
                f"{self.memory / 2**30:.1f}; lower `steps` or raise `memory`."
            )
        width = max(1, self.memory // each)
        if size >= _LONG and ops[0].device.type == "cpu":
            width = 1
        bounds: list[Bound] = []
        for i in range(0, len(ops), width):
            bounds += self._run(ops[i : i + width], None if state is None else state[i : i + width])
        return bounds

    def _run(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        with torch.no_grad():
            iteration = Iteration.of(ops)
            n = iteration.shape[1]
            proving = self.seed is None and state is None
            record = replace(self, seed=draw()) if proving else self
            noise = 16 * math.sqrt(iteration.depth + 16) * UNIT
            delta = overlap_quantile(n, self.failure, iteration.side.dtype.is_complex) / 2
            if proving and delta < noise:
                raise ArgumentError(
                    f"Lanczos.failure = {self.failure:g} is below what float64 can support on {n} unknowns; "
                    f"use at least {_least_failure(n, 2 * noise, iteration.side.dtype.is_complex):.1e}."
                )
            krylov = lanczos(
                iteration.gram,
                iteration.start(state, record.seed or 0, own=proving),
                self.steps,
                noise,
                done=lambda k: refuse_late() or k.within((1 + self.rtol) ** 2 - 1, delta, noise),
                record=recordable(iteration.side),
            )
            vector = krylov.ritz()
            root = krylov.upper(delta, noise).clamp(min=0).sqrt() * (1 + (2 + iteration.relative) * noise)
            spread = iteration.spread(iteration.exponent)
            log_lower, left, right = iteration.lower(vector)
            log_upper = torch.maximum(log_up(root + noise * spread, iteration.exponent), log_lower)
        log_value = log_upper if proving else log_lower
        # Live tensors are joined with their graph, which the search above does not need.
        op = stack([one.to(torch.float64) for one in ops])
        if any(t.requires_grad for t in op.tensors()):
            log_value = tie_gradient(log_value, op, left, right)
        return [
            Bound(
                log_value[i],
                Kind.UPPER if proving else Kind.LOWER,
                record,
                failure=self.failure if proving else 0.0,
                lower=Bound(log_lower[i], Kind.LOWER, record),
                witness=Witness(left[i], right[i]),
                state=vector[i],
            )
            for i in range(len(ops))
        ]


def _least_failure(n: int, overlap: float, complex_: bool) -> float:
    """The smallest failure probability whose quantile is at least `overlap`, a tenth more for rounding."""
    shape = (1.0, n - 1.0) if complex_ else (0.5, (n - 1) / 2)
    return 1.1 * float(scipy.special.betainc(*shape, overlap**2))
