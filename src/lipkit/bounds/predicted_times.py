"""How long methods will take, from short runs of what they are made of."""

from collections.abc import Sequence

import torch

from lipkit._runtime import fastest_seconds, seconds_per_multiplication
from lipkit.bounds.local.jacobian_intervals import slopes_of
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Intervals
from lipkit.regions import Region
from lipkit.trace import Network

# Adjoints of one neuron: two for its range, three for its row, as much again for the arithmetic between them.
_ADJOINTS = 10
# Products of matrices behind the multipliers: ten in each of ten steps.
_PRODUCTS = 100
# Rows that are timed.
_PROBE = 8


def row_seconds(network: Network, regions: Sequence[Region]) -> float:
    """Seconds for the ranges and rows of all neurons that intervals leave uncertain, over regions of one input each.

    Rather too much: linear relaxation leaves fewer of them, and large batches are faster than the small ones timed.
    """
    found = measure_network(network)
    with torch.no_grad():
        each, find, total = _adjoint_seconds(found), Intervals().prepare(network), 0.0
        for region in regions:
            for k, (alpha, beta) in slopes_of(found, find(region)).items():
                before = sum(seconds for at, seconds in each.items() if at <= k)
                total += _ADJOINTS * before * int((alpha < beta).sum())
    return total


def most_slopes(seconds: float, inputs: int, device: torch.device) -> int:
    """For how many uncertain slopes the multipliers are found in that time, beside so many inputs."""
    side = (seconds / (_PRODUCTS * seconds_per_multiplication(device))) ** (1 / 3)
    return int(min(side / 2, side - inputs))


def _adjoint_seconds(found: MeasuredNetwork) -> dict[int, float]:
    """Seconds for the adjoint of every row, for one vector."""
    times: dict[int, float] = {}
    for k, row in found.fused.items():
        if k not in found.inside:
            y = torch.ones(_PROBE, *row.shift.shape, dtype=torch.float64, device=found.device)
            times[k] = fastest_seconds(lambda y=y, row=row: [b.op.adjoint(y).sum().item() for b in row.blocks.values()])
    return {k: seconds / _PROBE for k, seconds in times.items()}
