"""How large the program of a network would be, before anything is written out."""

import math

import torch

from lipkit.bounds.sdp.cuts import chunks
from lipkit.bounds.sdp.dense_network import between, refuse_large_blocks
from lipkit.errors import TooLargeError
from lipkit.linops.queries.absolute import dominating
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Variables; a program takes a few arrays of this many squared numbers.
VARIABLES = 6000


def refuse_large(network: Network) -> None:
    """Refuse a network that cannot be written out or has too many variables, and say what reads it: one pass."""
    refuse_large_blocks(network)
    inputs, neurons = variables(network)
    if inputs + neurons <= VARIABLES:
        return
    largest = max(sum(variables(part)) for part in chunks(network, 1))
    parts = f" LipSDP(split=1), whose largest part has {largest}," if largest <= VARIABLES else ""
    raise TooLargeError(
        f"The semidefinite program has {inputs + neurons} variables ({inputs} for the input, {neurons} "
        f"nonlinear neurons), the limit is {VARIABLES}; use{parts}{' or' if parts else ''} LipLT() or Auto(), "
        "which have no such limit."
    )


def variables(network: Network) -> tuple[int, int]:
    """The variables that the input takes, and those of the neurons that are nonlinear and can move at all."""
    wide = network.detach().to(torch.float64)
    kept = between(wide.blocks, wide.sink)
    inputs = math.prod(wide.source)
    read = sum(math.prod(wide.shape_into(k)) for k, j in wide.blocks if j == 0 and k in kept)
    moving = {0: torch.ones(wide.source, dtype=torch.float64, device=wide.device)}
    neurons = 0
    for k in range(1, wide.sink):
        node = wide.nodes[k - 1]
        arriving = torch.zeros(wide.shape_into(k), dtype=torch.bool, device=wide.device)
        for j, op in wide.row(k).items():
            # Without signs nothing cancels: what stays zero reads nothing that moves.
            arriving |= dominating(op).apply(moving[j]) > 0
        if isinstance(node, Pointwise):
            low, high = node.slopes()
            moving[k] = arriving.to(torch.float64)
            neurons += int((arriving & (low < high).to(wide.device)).sum()) if k in kept else 0
        else:
            moving[k] = torch.full(node.target, float(arriving.any()), dtype=torch.float64, device=wide.device)
            neurons += int(moving[k].sum()) if k in kept else 0
    return min(inputs, read), neurons
