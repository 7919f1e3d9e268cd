"""Power iteration: a lower bound, however long it runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind, Witness
from lipkit.errors import ArgumentError
from lipkit.linops import LinearOperator, stack
from lipkit.norms._base import Norm, positive_int
from lipkit.norms._krylov import generator
from lipkit.norms._matrix_free import lower_side, sizes
from lipkit.norms._vectors import tied


@final
@dataclass(frozen=True)
class Power(Norm):
    """Lower bound of the spectral norm by power iteration, v <- A* A v / ||A* A v||, read as ||A v||.

    The value never decreases from step to step, and its relative error falls like (sigma_2/sigma_1)^(4 steps).
    Stops early once a step changes the value by less than `rtol`, which says nothing about the distance to the norm.

    Guarantee: LOWER. Cost: `steps` applications of A and A*. Warm start: `Power()(op, state=previous.state)`.
    """

    steps: int = 100
    rtol: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        positive_int("Power.steps", self.steps, least=0)
        if not 0 <= self.rtol < math.inf:
            raise ArgumentError(f"Power.rtol must be a finite number >= 0, got {self.rtol}.")

    def __str__(self) -> str:
        return f"power iteration, {self.steps} steps"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        op = stack([one.to(torch.float64) for one in ops])
        with torch.no_grad():
            frozen = op.map(Tensor.detach)
            vector = self._iterate(frozen if ops[0].in_size <= ops[0].out_size else frozen.T, state)
            log_lower, left, right = lower_side(ops, frozen, vector, *sizes(ops, op.device))
        log_value = tied(log_lower, op, left, right) if any(t.requires_grad for t in op.tensors()) else log_lower
        return [
            Bound(log_value[i], Kind.LOWER, self, witness=Witness(left[i], right[i]), state=vector[i])
            for i in range(len(ops))
        ]

    def _iterate(self, op: LinearOperator, state: Tensor | None) -> Tensor:
        count, n = op.in_shape[0], math.prod(op.in_shape[1:])
        if state is None:
            state = torch.randn(n, generator=generator(self.seed, op.device), dtype=torch.float64, device=op.device)
            state = state.expand(count, n)
        elif state.shape != (count, n):
            raise ArgumentError(
                f"The power-iteration state of this operator has {n} entries, got {tuple(state.shape[1:])}."
            )
        v, before = state.to(op.dtype), None
        for _ in range(self.steps):
            w = op.adjoint(op.apply(v.reshape(op.in_shape))).reshape(count, n)
            length = torch.linalg.vector_norm(w, dim=1, keepdim=True)
            # A vector in the kernel stays where it is: the bound is then 0.
            v = torch.where(length > 0, w / torch.where(length > 0, length, 1.0), v)
            if self.rtol and before is not None and bool((length <= before * (1 + self.rtol)).all()):
                break
            before = length
        return v
