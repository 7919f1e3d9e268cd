"""Multipliers in closed form, one layer after the other."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.bounds._base import Method
from lipkit.bounds.sdp.dense_network import DenseNetwork, Slopes, Whole, chain_of, read
from lipkit.bounds.sdp.lipsdp import refuse_large
from lipkit.bounds.sdp.network_program import fold_point, program_of
from lipkit.bounds.sdp.program import Multipliers, Program
from lipkit.bounds.sdp.proof import attach_gradient, prove, wants_gradient
from lipkit.regions import Region
from lipkit.trace import Network

# Keeps a factor away from the boundary, where a matrix to be inverted is singular.
_INSIDE = 1 - 1e-9


@final
@dataclass(frozen=True)
class ECLipsE(Method):
    """Upper bound of a feed-forward network from multipliers of `LipSDP` that are known in closed form.

    The values of layer k lie in an ellipsoid of shape Y_k (y* Y_k^-1 y <= |x|^2), found from the one before:
        G = A_k Y_(k-1) A_k*,   g = ||G||,   T = r / (m g),   Y_k = C (G^-1 - T)^-1 C + R^2 T^-1,
    with C and R the centers c and radii r of the slopes and m = |c| + r, for each neuron; L^2 = ||A_L Y_(L-1) A_L*||.
    T is the best choice for a neuron seen alone, so L is never above the product of norms. For slopes in [0, 1],
    Y_k^-1 = 2 t I - t^2 G with t = 1 / g, the published form; the one above, for any slopes, is ours.

    Guarantee: UPPER; proven like LipSDP, of which it is a feasible point, so never below it. Differentiable at fixed
    multipliers, which is the derivative of a valid bound but not of the closed form. Cost: one eigenvalue problem a
    layer, and the proof. Networks with branches are refused.
    Reference: Xu and Sivaranjani 2024.
    """

    def __str__(self) -> str:
        return "ECLipsE, closed form"

    def _bound(self, network: Network, region: Region) -> Bound:
        network.require_constants(2.0)
        refuse_large(network)
        dense, device = read(network), network.device
        if not dense.connected:
            return Bound(torch.full((), -math.inf, dtype=torch.float64, device=device), Kind.UPPER, self, region=region)
        program = program_of(dense, Multipliers.PER_NEURON)
        proof = prove(program, closed_form(dense, program, self), fold_point(dense, program, Multipliers.PER_NEURON))
        live = wants_gradient(network)
        log_value = attach_gradient(network, dense, program, proof, proof.vector[None]) if live else proof.log_value
        return Bound(log_value.to(device), Kind.UPPER, self, region=region)


def closed_form(dense: DenseNetwork, program: Program, method: object) -> Float64[Tensor, " groups"]:
    """(rho, tau) from the recursion, for one multiplier per neuron; `method` is who asks, for the refusal."""
    blocks, nodes = chain_of(dense, method)
    point = torch.ones(program.groups + 1, dtype=torch.float64)
    constraints = {one.node: one for one in program.constraints}
    shape = torch.eye(dense.inputs, dtype=torch.float64)
    for block, node, k in zip(blocks, nodes, dense.nodes, strict=False):
        gram = block.matrix @ shape @ block.matrix.mT
        weights, shape = _through(node, (gram + gram.mT) / 2)
        if k in constraints:
            one = constraints[k]
            chosen = weights[one.neurons] if isinstance(node, Slopes) else weights[:1].expand(len(one.rest_group))
            point[1 + one.rest_group] = chosen
    return point * torch.linalg.eigvalsh(blocks[-1].matrix @ shape @ blocks[-1].matrix.mT)[-1]


def _through(node: Slopes | Whole, gram: Tensor) -> tuple[Tensor, Tensor]:
    """(T, Y_k) of one node, given G."""
    top = torch.linalg.eigvalsh(gram)[-1]
    # Where nothing arrives any positive number will do.
    top = top if bool(top > 0) else torch.ones((), dtype=torch.float64)
    if isinstance(node, Slopes):
        steepest = node.center.abs() + node.radius
        weights = node.radius / (torch.where(steepest > 0, steepest, 1.0) * top) * _INSIDE
        spread = torch.diag(torch.where(node.radius > 0, node.radius * steepest * top / _INSIDE, 0.0))
        return weights, node.center[:, None] * _inflate(gram, weights) * node.center + spread
    center = 0.0 if node.center is None else node.center.size
    share = node.scale.size / max(center + node.scale.size, 1e-300)
    weights = (share / top * _INSIDE).expand(len(gram))
    spread = node.scale.matrix @ node.scale.matrix.mT / weights[0].clamp(min=1e-300)
    if node.center is None:
        return weights, spread
    return weights, node.center.matrix @ _inflate(gram, weights) @ node.center.matrix.mT + spread


def _inflate(gram: Tensor, weights: Tensor) -> Tensor:
    """(G^-1 - T)^-1 = G + G S (I - S G S)^-1 S G with S = T^(1/2), which needs no inverse of G."""
    root = weights.sqrt()
    inner = torch.eye(len(gram), dtype=torch.float64) - root[:, None] * gram * root
    half = root[:, None] * gram
    return gram + half.mT @ torch.linalg.solve(inner, half)
