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
from lipkit.bounds.sdp.dense_network import read
from lipkit.bounds.sdp.gradient import attached, dual, wanted
from lipkit.bounds.sdp.interior_point import InteriorPoint, Solver
from lipkit.bounds.sdp.program import Multipliers, program_of
from lipkit.bounds.sdp.program_size import refuse_large
from lipkit.bounds.sdp.proof import prove
from lipkit.bounds.sdp.start_from_norms import fold_point
from lipkit.bounds.sdp.start_from_parts import solved
from lipkit.errors import ArgumentError
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network


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
        fold = fold_point(dense, program, self.multipliers)
        if isinstance(self.solver, InteriorPoint):
            guess = solved(dense, program, self.multipliers, self.solver)
        else:
            guess = self.solver.solve(program, fold) if program.groups else fold
        proof = prove(program, guess, fold)
        if not wanted(network):
            return proof.log_value.to(device)
        directions = dual(program, guess)
        chosen = proof.vector[None] if directions is None else directions
        return attached(network, dense, program, proof, chosen).to(device)
