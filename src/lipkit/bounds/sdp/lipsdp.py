"""LipSDP: the network as a quadratic form, certified by multipliers."""

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds._base import Method
from lipkit.bounds.sdp.cuts import chunks
from lipkit.bounds.sdp.dense_network import between, read, refuse_large_blocks
from lipkit.bounds.sdp.interior_point import InteriorPoint, Solver
from lipkit.bounds.sdp.network_program import fold_point, program_of
from lipkit.bounds.sdp.program import Multipliers
from lipkit.bounds.sdp.proof import attach_gradient, dual_directions, prove, wants_gradient
from lipkit.errors import ArgumentError, TooLargeError
from lipkit.linops.queries.absolute import dominating
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.nodes import Pointwise

# Variables; a program takes a few arrays of this many squared numbers.
VARIABLES = 6000


@final
@dataclass(frozen=True)
class LipSDP(Method):
    """Upper bound sqrt(rho) from a semidefinite program in the slopes of all neurons at once:

        minimise rho  with  rho |x|^2 - |output|^2 >= sum_i tau_i (z_i^2 - w_i^2)  for all x, w;  tau >= 0,

    where each neuron of slopes in [alpha, beta] is y = c z + r w, |w| <= |z|, c = (alpha + beta) / 2,
    r = (beta - alpha) / 2, and the z and the output are the linear functions of x and w that the network makes of them.
    For feed-forward nets this is the published matrix inequality; residual nets, branches and slopes for each neuron
    (in a box) need nothing else. A node that is only known by its constant L is y = L w with one ||w|| <= ||z||. An
    input wider than the layers that read it is rotated away.

    Guarantee: UPPER. What the solver found is repaired and proven in float64, rounding counted; multipliers are
    diagonal, the coupled ones of the original paper being unsound. Never above the product of norms by more than the
    solver's tolerance, and PER_NEURON never above PER_LAYER. Differentiable in the weights at fixed multipliers.
    Cost: see `InteriorPoint`; a second for two hundred neurons, minutes for four thousand. Large networks that can be
    cut are solved in halves first, for a start near the optimum. `split` cuts the network into parts of about that many
    nodes and multiplies their bounds, which is cheaper and looser.
    References: Fazlyab et al. 2019; Wang et al. 2022 for local slopes.
    """

    multipliers: Multipliers = Multipliers.PER_NEURON
    solver: Solver = field(default_factory=InteriorPoint)
    split: int | None = None

    def __post_init__(self) -> None:
        if self.split is not None and self.split < 1:
            raise ArgumentError(f"LipSDP.split must be at least 1 node, got {self.split}.")

    def __str__(self) -> str:
        parts = "" if self.split is None else f", in parts of {self.split} nodes"
        return f"LipSDP, {self.multipliers.value}, {self.solver}{parts}"

    def _bound(self, network: Network, region: Region) -> Bound:
        network.require_constants(2.0)
        pieces = [network] if self.split is None else chunks(network, self.split)
        for piece in pieces:
            refuse_large(piece)
        if self.split is None:
            return Bound(self._log_value(network), Kind.UPPER, self, region=region)
        parts = [Bound(self._log_value(piece), Kind.UPPER, self) for piece in pieces]
        product = parts[0]
        for part in parts[1:]:
            product = part.compose(product)
        # A part holds where its own input can lie, which has no name unless that is everywhere.
        shown = tuple(parts) if region == Everywhere() else ()
        return Bound(product.log_value, Kind.UPPER, self, region=region, parts=shown)

    def _log_value(self, network: Network) -> Float64[Tensor, ""]:
        dense, device = read(network), network.device
        if not dense.connected:
            return torch.full((), -math.inf, dtype=torch.float64, device=device)
        program = program_of(dense, self.multipliers)
        guess = self.solver.find(dense, program, self.multipliers)
        proof = prove(program, guess, fold_point(dense, program, self.multipliers))
        if not wants_gradient(network):
            return proof.log_value.to(device)
        # Without multipliers nothing was solved, and the proof has the one direction that is tight.
        directions = dual_directions(program, guess) if program.groups else None
        chosen = proof.vector[None] if directions is None else directions
        return attach_gradient(network, dense, program, proof, chosen).to(device)


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
