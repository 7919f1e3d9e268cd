"""The rows of each step, drawn as the plan says."""

from typing import final

import torch
from jaxtyping import Int64
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.privacy.batch_sampling import Poisson, Shuffled, Whole
from lipkit.privacy.entropy import Entropy
from lipkit.privacy.plan import Plan


@final
class Batches:
    """Which rows a step reads. Rates and sizes are those of the plan; only the order knows how many rows there are."""

    def __init__(self, plan: Plan, rows: int, entropy: Entropy) -> None:
        self._plan, self._rows, self._entropy = plan, rows, entropy
        self._order: Int64[Tensor, " rows"] | None = None

    def draw(self, step: int) -> Int64[Tensor, " chosen"]:
        """The rows of a step, which are counted from 1; there may be none."""
        match self._plan.sampling:
            case Poisson():
                return self._entropy.poisson(self._rows, self._plan.rate)
            case Whole():
                return torch.arange(self._rows)
            case Shuffled() as sampling:
                size = self._plan.batch
                at = (step - 1) % sampling.steps_per_epoch(self._plan.records, size)
                if at == 0 or self._order is None:
                    self._order = self._entropy.shuffled(self._rows)
                return self._order[at * size : (at + 1) * size]
            case other:
                raise UnsupportedError(f"No batches are drawn by {other}; use Poisson(), Whole() or Shuffled().")
