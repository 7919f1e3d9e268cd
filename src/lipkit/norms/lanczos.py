"""Randomised Lanczos: an upper bound with a stated failure probability, for any operator that can be applied."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind, Witness
from lipkit.errors import ArgumentError, NonFiniteError, TooLargeError
from lipkit.linops import LinearOperator, depth, stack
from lipkit.norms._base import Norm, positive_int
from lipkit.norms._krylov import generator, lanczos, overlap_quantile
from lipkit.norms._matrix_free import lower_side, sizes
from lipkit.norms._recording import recordable
from lipkit.norms._rounding import UNIT, log_up
from lipkit.norms._vectors import tied


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
    16 sqrt(depth) 2^-53 are not used; that much of the operator's magnitude is added; a `failure` too small for it is
    refused. (Errors of an inner product of length d are taken as sqrt(d), the probabilistic model of Higham and Mary
    2019, which fits the kind of statement made here.)
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

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        size = min(ops[0].in_size, ops[0].out_size)
        each = 8 * size * (min(self.steps, size) + 1)
        if each > self.memory:
            raise TooLargeError(
                f"{self.steps} Lanczos vectors of {size} entries need {each / 2**30:.1f} GiB, more than the allowed "
                f"{self.memory / 2**30:.1f}; lower `steps` or raise `memory`."
            )
        width = max(1, self.memory // each)
        bounds: list[Bound] = []
        for i in range(0, len(ops), width):
            bounds += self._run(ops[i : i + width], None if state is None else state[i : i + width])
        return bounds

    def _run(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        op = stack([one.to(torch.float64) for one in ops])
        frozen = op.map(Tensor.detach)
        n = min(ops[0].in_size, ops[0].out_size)
        side = frozen if ops[0].in_size <= ops[0].out_size else frozen.T
        proving = self.seed is None and state is None
        record = replace(self, seed=secrets.randbits(62)) if proving else self
        noise = 16 * math.sqrt(depth(ops[0])) * UNIT
        delta = overlap_quantile(n, self.failure, op.dtype.is_complex) / 2
        if proving and delta < noise:
            least = self.failure * noise / delta
            raise ArgumentError(
                f"Lanczos.failure = {self.failure:g} is below what float64 can support on {n} unknowns; "
                f"use at least {least:.0e}."
            )
        absolute, relative = sizes(ops, op.device)
        if not bool(torch.isfinite(absolute).all()):
            raise NonFiniteError(f"{ops[0]} has NaN, infinite or overflowing weights; repair or rescale them first.")
        exponent = torch.frexp(absolute).exponent.to(torch.float64).clamp(-1000, 1000)
        # Powers of two: exact, and A* A neither overflows nor underflows however small the weights are.
        unit = torch.exp2(-exponent)[:, None]
        moderate = bool((exponent.abs() <= 64).all())

        def gram(v: Tensor) -> Tensor:
            x = v if moderate else v * unit
            y = side.adjoint(side.apply(x.reshape(side.in_shape))).reshape(v.shape)
            return y if moderate else y * unit

        start = self._start(record.seed, state, len(ops), n, op)

        scale = torch.ones_like(absolute) if moderate else unit[:, 0]
        with torch.no_grad():
            krylov = lanczos(
                gram,
                start,
                self.steps,
                noise,
                done=lambda k: k.within((1 + self.rtol) ** 2 - 1, delta, noise),
                record=recordable(side),
            )
            vector = krylov.ritz()
            upper = krylov.upper(delta, noise).sqrt() * (1 + 2 * noise) + noise * absolute * scale
            log_lower, left, right = lower_side(ops, frozen, vector, absolute, relative)
            log_upper = torch.maximum(log_up(upper, -scale.log2()), log_lower)
        log_value = log_upper if proving else log_lower
        if any(t.requires_grad for t in op.tensors()):
            log_value = tied(log_value, op, left, right)
        method = record if proving else self
        return [
            Bound(
                log_value[i],
                Kind.UPPER if proving else Kind.LOWER,
                method,
                failure=self.failure if proving else 0.0,
                lower=Bound(log_lower[i], Kind.LOWER, method),
                witness=Witness(left[i], right[i]),
                state=vector[i],
            )
            for i in range(len(ops))
        ]

    def _start(self, seed: int | None, state: Tensor | None, count: int, n: int, op: LinearOperator) -> Tensor:
        if state is None:
            assert seed is not None
            draw = torch.randn(count, n, generator=generator(seed, op.device), dtype=torch.float64, device=op.device)
            if op.dtype.is_complex:
                other = generator(seed + 1, op.device)
                draw = torch.complex(
                    draw, torch.randn(count, n, generator=other, dtype=torch.float64, device=op.device)
                )
            return draw
        if state.shape != (count, n):
            raise ArgumentError(f"The Lanczos state of this operator has {n} entries, got {tuple(state.shape[1:])}.")
        return state.to(op.dtype)
