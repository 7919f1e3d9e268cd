"""The smallest bound that a time budget allows, cheapest methods first."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from lipkit.bound import L2, Bound, Metric
from lipkit.bounds._base import Method
from lipkit.bounds.best import smallest
from lipkit.bounds.condensed import Condensed
from lipkit.bounds.dag import DAG
from lipkit.bounds.liplt import LipLT
from lipkit.bounds.local import Local
from lipkit.bounds.sdp import LipSDP
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.norms import Auto as AutoNorm
from lipkit.norms import Norm
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Neurons up to which semidefinite bounds are tried, on the whole space and on a region, where most are linear.
_PROGRAM, _REGION = 400, 20000


@final
@dataclass(frozen=True)
class Auto(Method):
    """Runs a ladder of methods, cheapest first, while the predicted time of the next one fits into `budget` seconds:

        everywhere    the fold, LipLT with the largest window that fits, LipSDP up to 400 neurons;
        on a region   the same through `Local`, and `Condensed` up to 20,000 neurons.

    The first rung is always taken, whatever it costs; LipLT is predicted from its time and from the number of blocks
    that one application of each map passes, LipSDP from the number of neurons. A method that refuses a network as too
    large is left out. All results are in `parts`.

    Guarantee: EXACT or UPPER, as the best rung's is. Cost: about the budget, or the first rung.
    """

    budget: float = 60.0
    norm: Norm = AutoNorm()
    metric: Metric = L2

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ArgumentError(f"Auto.budget is a number of seconds > 0, got {self.budget}.")

    def __str__(self) -> str:
        return f"the best within {self.budget:g} s"

    @property
    def reads_region(self) -> bool:
        """True: the region decides what is found."""
        return True

    def _bound(self, network: Network, region: Region) -> Bound:
        started = time.monotonic()
        everywhere = region == Everywhere()
        first = DAG(self.norm, metric=self.metric)
        results = [(first if everywhere else Local(first))(network, region)]
        unit = (time.monotonic() - started) / max(1, len(first.fused(network).blocks))

        def left() -> float:
            return self.budget - (time.monotonic() - started)

        for method in self._later(network, unit, left(), everywhere):
            if left() > 0:
                try:
                    results.append(method(network, region))
                except TooLargeError:
                    continue
        return smallest(results)

    def _later(self, network: Network, unit: float, left: float, everywhere: bool) -> Iterator[Method]:
        candidates = [LipLT(self.norm, window, self.metric) for window in (None, 6, 2)]
        liplt = next((one for one in candidates if unit * one.work(network) <= left), None)
        if liplt is not None:
            yield liplt if everywhere else Local(liplt)
        neurons = sum(
            math.prod(node.shape) for node in network.nodes if not (isinstance(node, Pointwise) and node.is_identity)
        )
        # About a second for two hundred neurons, growing with their cube.
        if everywhere and self.metric == L2 and neurons <= _PROGRAM and (neurons / 200) ** 3 <= left:
            yield LipSDP()
        if not everywhere and neurons <= _REGION and all(isinstance(node, Pointwise) for node in network.nodes):
            yield Condensed(self.metric)
