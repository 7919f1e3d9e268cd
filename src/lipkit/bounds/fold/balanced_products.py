"""Factors of products brought to sizes at which a fold loses nothing between them."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from lipkit.linops import Diagonal, LinearOperator, Reshape, Scaled, product, support
from lipkit.norms import Mixed
from lipkit.regions import Reach
from lipkit.trace import Network
from lipkit.trace.nodes import Interpolation, Node, Product

# Norms in closed form: nothing rests on these estimates but how tight a bound is.
_NORM = Mixed(2.0, 2.0)
# Gauges beyond 2^60 would balance what does not matter.
_EXPONENTS = 60


def balance_products(network: Network) -> Network:
    """The same function with a gauge t for every product a b of known range, whose input becomes (t a, b).

    A joint input (a, b) has the constant sqrt(L_a^2 + L_b^2) and a product sqrt(A^2 + B^2) for |a| <= A, |b| <= B;
    together that is more than the B L_a + A L_b of the product rule, unless B L_b = A L_a. The gauge
        t = sqrt(B L_b / (A L_a))
    makes them equal in l2, up to the rounding of t to a power of two. So the forget gate of an LSTM passes its state on
    without growth. Constants L are estimated from norms in closed form; every gauge is right, a bad one is loose.

    Guarantee: the same function, exactly. Cost: one norm in closed form for each operator, if there are such products.
    Our derivation.
    """
    if not any(_is_gated(node) for node in network.nodes):
        return network
    with torch.no_grad():
        nodes, blocks = dict(enumerate(network.nodes, start=1)), dict(network.blocks)
        rows, sizes = network.rows(), {0: 1.0}
        for k, node in enumerate(network.nodes, start=1):
            if not (isinstance(node, Product | Interpolation) and _is_gated(node)):
                constant = math.exp(min(700.0, float(node.log_constant(2.0))))
                sizes[k] = constant * math.hypot(*(_size(op) * sizes[j] for j, op in rows[k].items()))
                continue
            row = _joining_row(network, k)
            parts = {j: _masks(op, node) for j, op in rows[row].items()}
            gate, rest = (
                math.hypot(*(_size(rows[row][j]) * sizes[j] for j, masks in parts.items() if masks[side]))
                for side in (0, 1)
            )
            by_gate, by_rest = node.shares()
            sizes[k] = by_gate * gate + by_rest * rest
            factor = _factor(by_gate * rest, by_rest * gate)
            if factor != 1 and row not in network.biases:
                nodes[k] = _regauged(node, factor)
                for j, (in_gate, in_rest) in parts.items():
                    if in_gate:
                        op = blocks[row, j]
                        part = _diagonal(node, factor).to(device=op.device)
                        blocks[row, j] = product(part, op) if in_rest else op * factor
    return replace(network, nodes=tuple(nodes[k] for k in sorted(nodes)), blocks=blocks)


def unbalance_products(network: Network) -> Network:
    """The same function with gauge 1 for every `Product`, whose range is forgotten.

    Gauges suit constants on the whole space. What a product adds on a small region depends on other sizes, and a method
    that weighs both factors by itself, but measures its input (t a, b) by one length, needs them as they are. Weighted
    means (`Interpolation`) keep theirs: a ball of 0.5 around an input of a GRU had 3.5 times the constant without.
    Guarantee: the same function, exactly, for gauges are powers of two. Cost: bookkeeping.
    """
    nodes, blocks, biases = list(network.nodes), dict(network.blocks), dict(network.biases)
    for k, node in enumerate(network.nodes, start=1):
        if not isinstance(node, Product) or node.gauge == 1:
            continue
        nodes[k - 1] = replace(node, gauge=1.0, domain=None)
        scales = _scales(node, 1 / node.gauge)
        for j, op in network.row(k).items():
            blocks[k, j] = _rescale(op, scales, node)
        if k in biases:
            biases[k] = biases[k] * scales.to(biases[k])
    return replace(network, nodes=tuple(nodes), blocks=blocks, biases=biases)


def _rescale(op: LinearOperator, scales: Tensor, node: Product) -> LinearOperator:
    """D A for the diagonal D of `scales`, which only the gate feels."""
    in_gate, in_rest = _masks(op, node)
    if not in_gate:
        return op
    if in_rest:
        return product(Diagonal(scales.to(op.device), node.shape), op)
    factor = float(scales[0])
    return op.inner if isinstance(op, Scaled) and float(op.factor) * factor == 1 else op * factor


def _is_gated(node: Node) -> bool:
    """Whether a node is a product whose factors have a known range, and no gauge yet."""
    if not isinstance(node, Product | Interpolation) or node.domain is None or node.gauge != 1:
        return False
    return bool(torch.isfinite(node.domain[1] - node.domain[0]).all())


def _joining_row(network: Network, k: int) -> int:
    """The row that puts the parts side by side: k, or the only one before it if nobody else reads that."""
    row = network.row(k)
    if len(row) != 1 or k in network.biases:
        return k
    ((j, op),) = row.items()
    alone = sum(source == j for _, source in network.blocks) == 1
    return j if j and alone and isinstance(op, Reshape) and network.nodes[j - 1].is_identity else k


def _gate_size(node: Product | Interpolation) -> int:
    return math.prod(node.left if isinstance(node, Product) else node.size)


def _masks(op: LinearOperator, node: Product | Interpolation) -> tuple[bool, bool]:
    """Whether an operator writes to the gate, and to the rest."""
    at, cut = support(op).flatten(), _gate_size(node)
    return bool(at[:cut].any()), bool(at[cut:].any())


def _size(op: LinearOperator) -> float:
    return 1.0 if isinstance(op, Reshape) else float(_NORM(op).value)


def _factor(gate: float, rest: float) -> float:
    """The power of two next to sqrt(gate / rest); 1 where that says nothing."""
    if not (gate > 0 and rest > 0 and math.isfinite(gate / rest)):
        return 1.0
    return 2.0 ** max(-_EXPONENTS, min(_EXPONENTS, round(0.5 * math.log2(gate / rest))))


def _diagonal(node: Product | Interpolation, factor: float) -> Diagonal:
    return Diagonal(_scales(node, factor), node.shape)


def _scales(node: Product | Interpolation, factor: float) -> Tensor:
    scales = torch.ones(node.shape, dtype=torch.float64)
    scales[: _gate_size(node)] = factor
    return scales


def _regauged(node: Product | Interpolation, factor: float) -> Node:
    """The node whose gate arrives multiplied by a power of two; its box is scaled exactly, its ball grows."""
    assert node.domain is not None
    low, high, center, radius = node.domain
    scales = _scales(node, factor).to(low.device)
    moved = Reach(low * scales, high * scales, center * scales, radius * max(1.0, factor))
    return replace(node, gauge=factor).within(moved)
