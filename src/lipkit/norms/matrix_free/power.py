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
from lipkit.norms.matrix_free._base import Iteration
from lipkit.norms.svd import tie_gradient


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
        with torch.no_grad():
            iteration = Iteration.of(ops)
            vector = self._iterate(iteration, state)
            log_value, left, right = iteration.lower(vector)
        op = stack([one.to(torch.float64) for one in ops])
        if any(t.requires_grad for t in op.tensors()):
            log_value = tie_gradient(log_value, op, left, right)
        return [
            Bound(log_value[i], Kind.LOWER, self, witness=Witness(left[i], right[i]), state=vector[i])
            for i in range(len(ops))
        ]

    def _iterate(self, iteration: Iteration, state: Tensor | None) -> Tensor:
        v, before = iteration.start(state, self.seed, own=False), None
        for _ in range(self.steps):
            w = iteration.gram(v)
            length = torch.linalg.vector_norm(w, dim=1, keepdim=True)
            # A vector in the kernel stays where it is: the bound is then 0.
            v = torch.where(length > 0, w / torch.where(length > 0, length, 1.0), v)
            if self.rtol and before is not None and bool((length <= before * (1 + self.rtol)).all()):
                break
            before = length
        return v
