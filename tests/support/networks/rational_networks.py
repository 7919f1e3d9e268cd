"""Networks of matrices and ReLU in exact rational arithmetic: an oracle without rounding."""

from fractions import Fraction

import torch
from torch import Tensor

from lipkit.linops import materialize
from lipkit.trace import Network
from lipkit.trace.nodes import RELU, Pointwise

Vector = list[Fraction]


def rational(x: Tensor) -> Vector:
    """The entries of a tensor as fractions."""
    return [Fraction(value) for value in x.detach().to(torch.float64).flatten().tolist()]


def evaluated(network: Network, x: Vector) -> Vector:
    """The output of the network at x, exactly; nodes are ReLUs or identities, blocks are used as matrices."""
    values = [x]
    for k, row in network.rows().items():
        z = [Fraction(0)] * len(rational(torch.zeros(network.shape_into(k))))
        if k in network.biases:
            z = rational(network.biases[k].expand(network.shape_into(k)))
        for j, op in row.items():
            matrix = [rational(line) for line in materialize(op.to(torch.float64))]
            z = [
                a + sum((w * v for w, v in zip(line, values[j], strict=True)), Fraction(0))
                for a, line in zip(z, matrix, strict=True)
            ]
        if k < network.sink:
            node = network.nodes[k - 1]
            assert isinstance(node, Pointwise)
            assert node.is_identity or node.activation is RELU
            z = z if node.is_identity else [max(v, Fraction(0)) for v in z]
        values.append(z)
    return values[-1]
