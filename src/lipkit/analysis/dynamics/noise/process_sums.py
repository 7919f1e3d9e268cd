"""The processes whose batches make one gradient: what each hears of the noise is summed over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor


@final
@dataclass(frozen=True)
class Processes:
    """One process alone, or all that train copies of a model and average their gradients.

    Whoever calls a method calls it in all of them.
    """

    count: int = 1
    rank: int = 0

    @classmethod
    def joined(cls) -> Self:
        """Those of torch.distributed; without it this one alone."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_world_size(), dist.get_rank())

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all processes."""
        if self.count == 1:
            return part
        found = part.clone()
        dist.all_reduce(found)
        return found

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def first(self, reasons: Sequence[str | None]) -> str | None:
        """The first reason of any process."""
        return next((reason for told in self.gather(list(reasons)) for reason in told if reason), None)

    def draw_weights(self, samples: int, source: torch.Generator) -> Float64[Tensor, " samples"]:
        """eps_i - mean eps for this process' samples, eps = +-1, the mean over all samples.

        Nothing is exchanged: the generators of all processes have one state, and give the numbers of all.
        """
        signs = 2.0 * torch.randint(0, 2, (samples * self.count,), generator=source).to(torch.float64) - 1.0
        return (signs - signs.mean())[samples * self.rank : samples * (self.rank + 1)]
