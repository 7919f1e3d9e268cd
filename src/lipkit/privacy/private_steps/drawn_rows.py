"""The rows of each step, drawn as the plan says."""

from collections.abc import Iterator
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

    def pieces(self, step: int, most: int) -> Iterator[Int64[Tensor, " chosen"]]:
        """The rows of a step in pieces of at most `most` rows; one row more or less changes one piece alone.

        Rounding of a sum in float32 depends on all that is in it. So the pieces of a Poisson batch are cut at fixed
        rows of the table, not by counting: other pieces stay the same to the bit without a record.
        """
        chosen = self.draw(step)
        if not isinstance(self._plan.sampling, Poisson):
            yield from (piece for piece in chosen.split(most) if len(piece))
            return
        # w expected rows are at most w + 6 w^(1/2) but once in 1e9; that is `most` for this w.
        expected = ((most + 9) ** 0.5 - 3) ** 2
        width = max(1, int(max(most / 2, expected) / self._plan.rate))
        counts = (chosen // width).unique_consecutive(return_counts=True)[1]
        for block in chosen.split(counts.tolist()):
            yield from (piece for piece in block.split(most) if len(piece))
