"""The diagonal refinement of LipLT: the rest of a pointwise node, weighed entry by entry."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds._linearised import length
from lipkit.linops import Diagonal, LinearOperator, Stated, depth, magnitude, materialize, product
from lipkit.norms._rounding import gamma


def weights(op: LinearOperator) -> list[Float64[Tensor, " n"]]:
    """Vectors d with ||G v||^2 <= sum_i d_i^2 v_i^2 for all v, that is G*G <= diag(d)^2, for G the matrix of `op`.

        d_i^2 = sum_l |G*G|_il q_l / q_i   for any q > 0 (Gershgorin on diag(q)^-1 |G*G| diag(q)),

    with q = 1 (AOL) and with q the norms of the columns of G (SLL). Live in the operator's tensors; the rounding of the
    products and of G itself is added.
    """
    full = materialize(op.to(torch.float64))
    # In units of its largest entry, a power of two, so that squares neither over- nor underflow.
    exponent = torch.frexp(full.detach().abs().max()).exponent.clamp(-1000, 1000)
    unit = torch.exp2(exponent.to(torch.float64))
    matrix = full / unit
    gram = (matrix.mT @ matrix).abs()
    size = float(torch.linalg.vector_norm(matrix.detach()))
    known = magnitude(op)
    error = gamma(depth(op)) * (float(known.absolute / unit) + known.relative * size)
    slack = 2 * gamma(sum(matrix.shape) + 8) * size**2 + 2 * size * error + error**2
    columns = torch.linalg.vector_norm(matrix.detach(), dim=0).clamp(min=1e-12 * size + 1e-300)
    found: list[Tensor] = []
    for q in (torch.ones_like(columns), columns):
        square = (gram * q).sum(1) / q * (1 + gamma(gram.shape[0] + 8)) + slack
        found.append(square.sqrt() * unit * (1 + 2.0**-50))
    return found


def weighed(d: Float64[Tensor, " n"], op: LinearOperator) -> LinearOperator:
    """diag(d) A for an operator with n outputs, with its rounding error."""
    scale = Diagonal(d.reshape(op.out_shape), op.out_shape)
    known = magnitude(op)
    largest = float(d.detach().max())
    size = length(materialize(op)) * (1 + known.relative)
    return Stated(product(scale, op), depth(op) + 4, (float(known.absolute) + size) * largest)
