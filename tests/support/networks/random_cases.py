"""Random graphs with boxes, and which numbers about them are on the wrong side of the truth."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import optimize

from lipkit.bound import Bound, Kind, Scope
from lipkit.regions import Box, Everywhere
from lipkit.trace import Network
from support.networks.dense_norms import largest, largest_of_pairs
from support.networks.random_graphs import affine_pieces, jacobians, jacobians_at, random_network

# Brute force in numpy is off by a few roundings of sums of ten products.
BELOW = 1e-12
# Values from below carry the same roundings; the solver behind the linear program is good to about 1e-9.
ABOVE = 1e-9
POINTS = 300


@dataclass(frozen=True)
class Case:
    """A network, two boxes as one region for two samples, and the Jacobians that brute force finds."""

    seed: int
    network: Network
    boxes: Box

    @property
    def first(self) -> Box:
        """The region of the first sample alone."""
        return Box(self.boxes.low[0], self.boxes.high[0])

    @cached_property
    def everywhere(self) -> np.ndarray:
        """The Jacobians of all patterns."""
        return jacobians(self.network)

    @cached_property
    def inside(self) -> list[np.ndarray]:
        """The Jacobians at points of each box."""
        rng = np.random.default_rng([self.seed, 1])
        low, high = self.boxes.low.numpy()[:, None], self.boxes.high.numpy()[:, None]
        points = low + (high - low) * rng.random((2, POINTS, *self.network.source))
        return [jacobians_at(self.network, some) for some in points]

    def attained(self, value: float, p: float, sample: int) -> bool:
        """Whether a piece of the box is as steep as `value`, by linear programs over its points."""
        forms, matrices = affine_pieces(self.network)
        order = {1.0: 1, 2.0: 2, math.inf: np.inf}[p]
        steep = np.linalg.norm(matrices, ord=order, axis=(1, 2)) >= value * (1 - ABOVE)
        low, high = self.boxes.low[sample].numpy(), self.boxes.high[sample].numpy()
        for rows, shifts in (forms(int(i)) for i in np.flatnonzero(steep)):
            # rows x + shifts >= 0 for all kinks, up to what the solver tolerates.
            room = 1e-8 * (1 + np.abs(shifts) + np.abs(rows).sum(1))
            found = optimize.linprog(np.zeros(len(low)), -rows, shifts + room, bounds=list(zip(low, high, strict=True)))
            if found.status == 0:
                return True
        return False


def drawn(seed: int) -> Case:
    """A network of two to four hidden rows and up to eight kinks, and boxes of any size around points of any size."""
    rng = np.random.default_rng([seed, 0])
    dtype = (torch.float32, torch.float64)[int(rng.integers(2))]
    depth, width = (int(n) for n in rng.integers((2, 2), (5, 4)))
    network = random_network(seed, depth, width, neurons=8, dtype=dtype)
    center = torch.from_numpy(rng.normal(size=(2, *network.source)) * 10 ** rng.uniform(-1, 1))
    radius = torch.from_numpy(10 ** rng.uniform(-2, 1, size=(2, *network.source)))
    return Case(seed, network, Box(center - radius, center + radius))


def wrong_side(bound: Bound, case: Case) -> str:
    """What is wrong with a bound, or nothing. A bound of one box is one of the first.

    Everywhere the truth is the largest norm over all choices of extreme slopes. On a box it is the largest norm at
    points from below; from above, a value is believed only if a piece that steep meets the box.
    """
    everywhere = bound.region == Everywhere()
    if bound.of is Scope.PAIR:
        truths = largest_of_pairs(case.everywhere if everywhere else case.inside[0], bound.metric)
        below = bound.value.detach().numpy() < truths * (1 - BELOW)
        return f"{bound.value} is below {truths}" if bool(below.any()) else ""
    from_below = bound.kind in (Kind.LOWER, Kind.EXACT)
    for sample, value in enumerate(bound.value.detach().flatten().tolist()):
        truth = float(largest(case.everywhere if everywhere else case.inside[sample], bound.metric))
        if bound.kind.certifies and value < truth * (1 - BELOW):
            return f"{value!r} is below {truth!r}"
        too_high = from_below and value > truth * (1 + ABOVE)
        if too_high and (everywhere or not case.attained(value, bound.metric.p_in, sample)):
            return f"{value!r} is from below and above {truth!r}"
    return wrong_side(bound.lower, case) if bound.lower is not None else ""
